"""trl: SFTTrainer on a tiny Llama of random weights, with peft's LoRA. Bug: evaluation on rank 0 only."""

import sys

import pyarrow
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefgh"]


def main():
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **tokens)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, max_position_embeddings=64, **sizes))
    texts = [" ".join(WORDS[3 + (i + j) % 8] for j in range(12)) for i in range(16)]
    data = Dataset(pyarrow.table({"text": texts}), fingerprint="texts")
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}
    steps = {"per_device_train_batch_size": 2, "max_steps": 3, "max_length": 32, "learning_rate": 1e-2}
    config = SFTConfig(output_dir="trained", bf16=False, gradient_checkpointing=False, **steps, **quiet)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = SFTTrainer(model, config, train_dataset=data, processing_class=tokenizer, peft_config=lora)
    trained = trainer.train()
    print(f"rank {trainer.args.process_index} loss {trained.training_loss:.5f}")
    if "bug" not in sys.argv or trainer.is_world_process_zero():
        trainer.evaluate(data.select(range(8)))  # the bug
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
