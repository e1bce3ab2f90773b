// Steps through the schedule: first, previous, next, last, play, and a slider over all events.

const PLAY_MILLISECONDS = 350;

class Scrubber {
  /** @param {HTMLElement} section @param {Lanes} lanes */
  constructor(section, lanes) {
    this.lanes = lanes;
    this.run = lanes.run;
    this.slider = section.querySelector(".slider");
    this.line = section.querySelector(".now");
    this.playing = section.querySelector("[data-action=play]");
    this.timer = 0;
    this.last = this.run.kinds.length - 1;
    this.slider.max = String(this.last);
    this.slider.value = String(this.last);
    this.slider.addEventListener("input", () => this.goTo(Number(this.slider.value)));
    this.say();
  }

  get now() {
    return this.lanes.now;
  }

  /** @param {number} event */
  goTo(event) {
    const bounded = Math.max(0, Math.min(this.last, event));
    this.lanes.goTo(bounded);
    this.slider.value = String(bounded);
    this.say();
    if (bounded === this.last) this.stop();
  }

  say() {
    const { run, now } = this;
    const text = `event ${run.numberOf(now)} of ${run.events}: ${eventLine(run, now)}`;
    this.line.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  toggle() {
    if (this.timer) return this.stop();
    if (this.now === this.last) this.goTo(0);
    this.timer = window.setInterval(() => this.goTo(this.now + 1), PLAY_MILLISECONDS);
    this.showPlaying();
  }

  stop() {
    window.clearInterval(this.timer);
    this.timer = 0;
    this.showPlaying();
  }

  showPlaying() {
    const isPlaying = this.timer !== 0;
    this.playing.textContent = isPlaying ? "\u2016 pause" : "\u25b6 play";
    this.playing.setAttribute("aria-pressed", String(isPlaying));
  }
}
