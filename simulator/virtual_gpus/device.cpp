// A CUDA device whose memory is the host's: for a torch built without CUDA.
//
// Operators: `run_on_host` is the kernel of every operator that torch has for one backend at a time. It hands tensors
// that share the GPU tensors' memory to the operator's CPU kernel, and gives the results the device of the arguments.
// Operators that torch composes of others (most of the public ones) come here by their parts, as on a real GPU.
//
// Random numbers: a generator is a seed and an offset, as on a real GPU (its state: 16 bytes). An operator that draws
// runs with the CPU's generator seeded from both, then the offset goes on by 4; so the CPU's own generator is untouched,
// and ranks that seed alike draw alike. The numbers are not those of a real GPU.
//
// Streams: all work is done when a call returns, so streams and events only count.
//
// Why not PrivateUse1, torch's key for devices outside its tree: programs and torch itself ask for "cuda" by name. Why
// not a tensor subclass in Python: what C++ makes (the Reducer's buckets, gradients) is of no subclass.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_set>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::IValue;
using c10::Stream;
using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr int kMost = 64;  // torch's own limit of devices per machine in a build with CUDA
DeviceIndex device_count = 0;
size_t total_memory = 0;
bool is_used = false, in_bad_fork = false;
thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kMost] = {};
c10::StreamId latest_stream = 0;

DeviceIndex checked(int64_t index) {
  TORCH_CHECK(0 <= index && index < device_count, "CUDA error: invalid device ordinal: the program asks for cuda:", index,
      ", and there are ", int(device_count), " virtual GPUs, numbered from 0: run with --gpus ", index + 1,
      ", or take another one");
  return static_cast<DeviceIndex>(index);
}

struct OnDevice {
  DeviceIndex before = current_device;
  explicit OnDevice(std::optional<Device> device) {
    if (device && device->has_index()) current_device = checked(device->index());
  }
  ~OnDevice() { current_device = before; }
};

// ---- memory ----

struct Memory final : c10::DeviceAllocator {
  DeviceStats stats[kMost];
  std::mutex mutex;  // threads without the GIL, too

  struct Block {
    void* memory;
    size_t bytes;
    DeviceIndex device;
    c10::Storage host;  // of an operator's result, which owns the memory
  };

  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    all().change(*block, false);
    if (!block->host) std::free(block->memory);
    delete block;
  }

  static Memory& all() {
    static auto* memory = new Memory;  // never deleted: tensors may outlive statics
    return *memory;
  }

  void change(const Block& block, bool more) {
    const std::lock_guard<std::mutex> guard(mutex);
    auto& stat = stats[block.device];
    auto step = [more](Stat& each, size_t amount) { more ? each.increase(amount) : each.decrease(amount); };
    const auto rounded = (block.bytes + 511) / 512 * 512;  // as torch's allocator counts
    for (auto* bytes : {&stat.allocated_bytes, &stat.reserved_bytes, &stat.active_bytes}) step((*bytes)[0], rounded);
    step(stat.requested_bytes[0], block.bytes);
    for (auto* number : {&stat.allocation, &stat.segment, &stat.active}) step((*number)[0], 1);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const Device device(DeviceType::CUDA, checked(current_device));
    if (bytes == 0) return {nullptr, device};
    check_free(bytes);
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    TORCH_CHECK_WITH(OutOfMemoryError, memory, "CUDA out of memory: the host has no ", bytes, " bytes");
    return take({memory, bytes, device.index(), {}});
  }

  c10::DataPtr take(const Block& block) {
    change(block, true);
    return {block.memory, new Block(block), &release, Device(DeviceType::CUDA, block.device)};
  }

  // Gives an operator's result, in CPU memory, to the current device.
  c10::DataPtr adopt(const c10::Storage& host) {
    check_free(host.nbytes());
    return take({host.mutable_data(), host.nbytes(), current_device, host});
  }

  void check_free(size_t bytes) {
    TORCH_CHECK(!in_bad_fork, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
        "use the 'spawn' start method");
    auto& stat = stats[checked(current_device)];
    const auto used = static_cast<size_t>(stat.allocated_bytes[0].current);
    if (used + bytes <= total_memory) return;
    ++stat.num_ooms;
    C10_THROW_ERROR(OutOfMemoryError, c10::str("CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ",
        int(current_device), " has a total capacity of ", total_memory, " bytes of which ", total_memory - used,
        " bytes is free (a virtual GPU, in the memory of the host)."));
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  DeviceStats getDeviceStats(DeviceIndex device) override { return stats[checked(device)]; }
  void resetAccumulatedStats(DeviceIndex device) override {
    for_each(device, [](Stat& each) { each.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex device) override {
    for_each(device, [](Stat& each) { each.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {total_memory - stats[checked(device)].allocated_bytes[0].current, total_memory};
  }

  template <typename Function>
  void for_each(DeviceIndex device, Function function) {
    auto& stat = stats[checked(device)];
    for (auto* each : {&stat.allocated_bytes, &stat.reserved_bytes, &stat.active_bytes, &stat.requested_bytes,
             &stat.allocation, &stat.segment, &stat.active})
      function((*each)[0]);
  }
};

struct PinnedMemory final : c10::Allocator {
  std::unordered_set<const void*> pinned;
  std::mutex mutex;

  bool has(const void* memory) {
    const std::lock_guard<std::mutex> guard(mutex);
    return pinned.count(memory) > 0;
  }
  static PinnedMemory& all() {
    static auto* memory = new PinnedMemory;
    return *memory;
  }
  static void release(void* memory) {
    {
      const std::lock_guard<std::mutex> guard(all().mutex);
      all().pinned.erase(memory);
    }
    std::free(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    const std::lock_guard<std::mutex> guard(mutex);
    if (memory) pinned.insert(memory);
    return {memory, memory, &release, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

// ---- random numbers ----

struct GpuGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit GpuGenerator(DeviceIndex index)
      : GeneratorImpl(Device(DeviceType::CUDA, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    const uint64_t words[2] = {seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), words, 16);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == at::kByte, "RNG state is wrong size");
    std::memcpy(&seed_, state.data(), 8);
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + 8, 8);
  }
  GpuGenerator* clone_impl() const override {
    auto* copy = new GpuGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  // The seed of the numbers that the next operator draws (SplitMix64 of the seed and the offset).
  uint64_t draw() {
    uint64_t mixed = seed_ + 0x9e3779b97f4a7c15u * (offset_ / 4 + 1);
    offset_ += 4;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }
};

const at::Generator& default_generator(int64_t index) {
  static auto* all = new std::array<at::Generator, kMost>;
  auto& generator = (*all)[index < 0 ? current_device : checked(index)];
  if (!generator.defined()) generator = at::make_generator<GpuGenerator>(index < 0 ? current_device : index);
  return generator;
}

// The CPU's default generator draws from a GPU's while an operator runs.
struct DrawsFor {
  at::CPUGeneratorImpl* host = nullptr;
  c10::intrusive_ptr<c10::GeneratorImpl> before;

  void use(GpuGenerator& generator) {
    host = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
    before = host->c10::GeneratorImpl::clone();
    host->set_current_seed(generator.draw());
  }
  ~DrawsFor() {
    if (host == nullptr) return;
    auto* kept = static_cast<at::CPUGeneratorImpl*>(before.get());
    host->set_engine(kept->engine());
    host->set_next_float_normal_sample(kept->next_float_normal_sample());
    host->set_next_double_normal_sample(kept->next_double_normal_sample());
  }
};

// ---- the device ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  void setDevice(Device device) const override { current_device = checked(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  void synchronizeDevice(const DeviceIndex) const override {}

  DeviceIndex index_of(Device device) const { return device.has_index() ? checked(device.index()) : current_device; }
  Stream stream(Device device, c10::StreamId id) const {
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index_of(device)), id);
  }
  Stream getStream(Device device) const override { return stream(device, current_streams[index_of(device)]); }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getNewStream(Device device, int) const override { return stream(device, ++latest_stream); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return stream(device, ++latest_stream); }
  Stream exchangeStream(Stream next) const override {
    const Stream before = getStream(next.device());
    current_streams[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return device_count; }
  DeviceIndex deviceCount() const override { return device_count; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = checked(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const auto before = ::current_device;
    setCurrentDevice(device);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return device < 0 ? device : exchangeDevice(device); }
  std::string showConfig() const override { return ""; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<GpuGenerator>(index < 0 ? ::current_device : checked(index));
  }
  bool isPinnedPtr(const void* memory) const override { return PinnedMemory::all().has(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::all(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &Memory::all(); }
  void deviceSynchronize(DeviceIndex) const override {}
};

struct Timer final : c10d::Timer {  // of DDP's logging
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

// ---- operators ----

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

Tensor with_bits_of(const Tensor& from, const Tensor& made) {
  if (from.is_conj()) made._set_conj(true);
  if (from.is_neg()) made._set_neg(true);
  return made;
}

// The CPU's forms of an operator's GPU tensors, in the same memory. Tensors of one storage share one: torch looks there
// for writes that overlap.
struct Hosts {
  std::vector<std::pair<Tensor, Tensor>> pairs;  // of the host's form, and the GPU's tensor
  ska::flat_hash_map<c10::TensorImpl*, size_t> by_tensor;  // of both forms
  ska::flat_hash_map<c10::StorageImpl*, size_t> by_storage;  // of both forms: to the first pair

  void add(const Tensor& host, const Tensor& gpu) {
    by_tensor.emplace(host.unsafeGetTensorImpl(), pairs.size());
    by_tensor.emplace(gpu.unsafeGetTensorImpl(), pairs.size());
    pairs.emplace_back(host, gpu);
  }

  const Tensor& dense(const Tensor& tensor) {
    const auto known = by_tensor.find(tensor.unsafeGetTensorImpl());
    if (known != by_tensor.end()) return pairs[known->second].first;
    const auto& storage = tensor.storage();
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(tensor.numel() == 0 || storage.data() || tensor._is_zerotensor(), "CUDA error: an illegal memory access "
        "was encountered: a tensor of shape ", tensor.sizes(), " is used whose storage was freed");
    c10::Storage shared;
    const auto same = by_storage.find(impl);
    if (same != by_storage.end()) {
      shared = pairs[same->second].first.storage();
    } else {
      c10::DataPtr memory(storage.mutable_data(), nullptr, &c10::detail::deleteNothing, Device(DeviceType::CPU));
      shared = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory),
          c10::GetAllocator(DeviceType::CPU), /*resizable=*/true);
      by_storage.emplace(impl, pairs.size());
      by_storage.emplace(shared.unsafeGetStorageImpl(), pairs.size());
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    add(with_bits_of(tensor, Tensor(made)), tensor);
    return pairs.back().first;
  }
};

Tensor new_on(Device device, const Tensor& host) {
  OnDevice there(device);
  const auto& from = host.storage();
  TORCH_CHECK_NOT_IMPLEMENTED(from.data() || from.nbytes() == 0, "a tensor without memory has no form on virtual GPUs");
  if (from.nbytes() == 0 || from.use_count() > 1) {  // something else uses this memory
    auto made = at::detail::empty_strided_generic(host.sizes(), host.strides(), &Memory::all(), kKeys, host.scalar_type());
    if (made.storage().nbytes()) std::memcpy(made.storage().mutable_data(), host.const_data_ptr(), made.storage().nbytes());
    return with_bits_of(host, Tensor(made));
  }
  c10::Storage taken(c10::Storage::use_byte_size_t(), from.nbytes(), Memory::all().adopt(from), &Memory::all(), true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(taken), kKeys, host.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return with_bits_of(host, Tensor(made));
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice there(device);
  return at::detail::empty_generic(size, &Memory::all(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  OnDevice there(device);
  return at::detail::empty_strided_generic(size, stride, &Memory::all(), kKeys, c10::dtype_or_default(dtype));
}

Tensor zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>) {
  OnDevice there(device);
  at::native::ZeroTensorAllocator none(Device(DeviceType::CUDA, current_device));
  return at::detail::empty_generic(
      size, &none, kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor), c10::dtype_or_default(dtype), {});
}

void copy_on_host(const Tensor& to, const Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView below;
  Hosts hosts;
  const Tensor target = to.is_cuda() ? hosts.dense(to) : to;
  target.copy_(from.is_cuda() ? hosts.dense(from) : from);
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  copy_on_host(to, from);
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  copy_on_host(to, from);
  return to;
}

at::Scalar local_scalar(const Tensor& tensor) {
  Hosts hosts;
  return at::_local_scalar_dense(hosts.dense(tensor));
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  OnDevice there(storage.device());
  auto memory = Memory::all().allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes())) std::memcpy(memory.get(), storage.data(), kept);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl->set_sizes_contiguous(size);
  const size_t bytes = (self.storage_offset() + self.numel()) * self.itemsize();
  if (self.numel() && bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
      "\" to a storage on different device \"", source.device(), "\". This is no longer allowed; the devices must match.");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.empty() && !size.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  const size_t bytes = self.numel() ? at::detail::computeStorageNbytes(size, self.strides(), self.itemsize(), offset) : 0;
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const int64_t size = source.nbytes() / self.itemsize();
  return set_storage(self, std::move(source), 0, {size}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  OnDevice there(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, Memory::all().allocate(0), &Memory::all(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

void record_stream(Tensor&, Stream) {}

// ---- sparse tensors: pairs of indices and values ----

at::SparseTensorImpl* sparse(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

Tensor new_sparse(c10::DispatchKey key, const Tensor& like, const Tensor& indices, const Tensor& values) {
  OnDevice there(values.is_cuda() ? std::optional<Device>(values.device()) : std::nullopt);
  auto made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  auto* from = sparse(like);
  sparse(made)->resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
  sparse(made)->set_indices_and_values_unsafe(indices, values);
  sparse(made)->set_coalesced(from->coalesced());
  return made;
}

// Operators that take tensors of several devices: torch compares none of them, or copies.
bool takes_several_devices(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::_index_put_impl_", "aten::index.Tensor",
      "aten::index.Tensor_out", "aten::index_put_", "aten::_amp_foreach_non_finite_check_and_unscale_",
      "aten::_pin_memory", "aten::is_set_to", "aten::_unsafe_index.Tensor"};
  return names.count(name) || name.rfind("aten::_foreach_", 0) == 0 || name.rfind("aten::_fused_", 0) == 0 ||
      name.rfind("aten::_copy_from", 0) == 0;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  const auto& name = schema.operator_name();
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) ||
          op.hasComputedKernelForDispatchKey(c10::DispatchKey::SparseCPU), toString(name),
      " has no form on the CPU, where virtual GPUs compute: take another dtype or implementation");
  Hosts hosts;
  std::optional<Device> device, other;
  std::optional<DrawsFor> draws;
  auto to_host = [&](const Tensor& tensor) -> Tensor {
    if (tensor.layout() != at::kSparse) {
      TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage(), toString(name), " of a tensor of layout ", tensor.layout(),
          " has no form on virtual GPUs: take dense tensors, or the CPU");
      return hosts.dense(tensor);
    }
    const auto known = hosts.by_tensor.find(tensor.unsafeGetTensorImpl());
    if (known != hosts.by_tensor.end()) return hosts.pairs[known->second].first;
    const Tensor indices = hosts.dense(sparse(tensor)->indices()), values = hosts.dense(sparse(tensor)->values());
    hosts.add(new_sparse(c10::DispatchKey::SparseCPU, tensor, indices, values), tensor);
    return hosts.pairs.back().first;
  };
  bool is_written = false;  // by the operator: the argument that is looked at
  auto turn = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const bool counts = tensor.is_cuda() || tensor.dim() || is_written;  // a number on the CPU goes with any device
    if (counts && tensor.device() != device) {
      if (device) other = tensor.device();
      else device = tensor.device();
    }
    return tensor.is_cuda() ? to_host(tensor) : tensor;
  };
  const auto many = schema.arguments().size();
  auto arguments = torch::jit::last(*stack, many);
  std::vector<IValue> values(arguments.begin(), arguments.end());
  std::optional<Device> named;
  GpuGenerator* generator = nullptr;
  bool has_host_generator = false;
  for (size_t argument = 0; argument < many; ++argument) {
    auto& value = values[argument];
    const auto* alias = schema.arguments()[argument].alias_info();
    is_written = alias && alias->isWrite();
    if (value.isTensor()) {
      value = turn(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(turn(each));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<Tensor>(turn(*each)) : each);
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      named = value.toDevice();
      value = Device(DeviceType::CPU);
    } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
      generator = static_cast<GpuGenerator*>(value.toGenerator().unsafeGetGeneratorImpl());
      value = IValue();
    } else if (value.isGenerator()) {
      has_host_generator = true;
    }
  }
  const bool is_here = named || !hosts.pairs.empty();
  TORCH_CHECK(is_here, toString(name), " is called for a GPU, and no tensor lies there");
  TORCH_CHECK(!has_host_generator, "Expected a 'cuda' device type for generator but found 'cpu'");
  if (other && name.name.find("index") != std::string::npos && device->is_cpu() && takes_several_devices(toString(name)))
    TORCH_CHECK(false, "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
  if (other && !takes_several_devices(toString(name)))
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
        device->is_cuda() ? *device : *other, " and ", device->is_cuda() ? *other : *device, "! (in ", toString(name), ")");
  Device home = named ? *named : Device(DeviceType::CUDA, current_device);
  if (!named) home = hosts.pairs.front().second.device();
  if (!home.has_index()) home.set_index(current_device);
  if (generator || op.hasTag(at::Tag::nondeterministic_seeded)) {
    if (!generator) generator = static_cast<GpuGenerator*>(default_generator(home.index()).unsafeGetGeneratorImpl());
    draws.emplace().use(*generator);
  }
  torch::jit::drop(*stack, many);
  for (auto& value : values) stack->push_back(std::move(value));
  try {
    op.callBoxed(stack);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("not implemented for '") == std::string::npos) throw;
    TORCH_CHECK_NOT_IMPLEMENTED(false, toString(name), " has no form on the CPU, where virtual GPUs compute (",
        text.substr(0, text.find('\n')), "): take another dtype or implementation");
  }

  std::function<Tensor(const Tensor&)> back = [&](const Tensor& result) -> Tensor {
    if (!result.defined() || !result.device().is_cpu()) return result;
    const auto known = hosts.by_tensor.find(result.unsafeGetTensorImpl());
    if (known != hosts.by_tensor.end()) return hosts.pairs[known->second].second;
    const auto same = result.has_storage() ? hosts.by_storage.find(result.storage().unsafeGetStorageImpl()) : hosts.by_storage.end();
    if (same != hosts.by_storage.end()) {  // a view
      const Tensor& base = hosts.pairs[same->second].second;
      const c10::DispatchKeySet bits{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor};
      auto view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set() - bits, result.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
      return with_bits_of(result, Tensor(view));
    }
    if (result.layout() == at::kSparse)
      return new_sparse(c10::DispatchKey::SparseCUDA, result, back(sparse(result)->indices()), back(sparse(result)->values()));
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided, toString(name), " makes a tensor of layout ",
        result.layout(), ", which has no form on virtual GPUs: take dense tensors, or the CPU");
    return new_on(home, result);
  };
  for (size_t number = 0; number < hosts.pairs.size(); ++number) {  // an operator may resize what it writes
    const auto [host, gpu] = hosts.pairs[number];
    if (gpu.layout() == at::kSparse) {
      sparse(gpu)->resize_(sparse(host)->sparse_dim(), sparse(host)->dense_dim(), host.sizes());
      sparse(gpu)->set_indices_and_values_unsafe(back(sparse(host)->indices()), back(sparse(host)->values()));
      sparse(gpu)->set_coalesced(sparse(host)->coalesced());
      continue;
    }
    const auto &from = host.storage(), &to = gpu.storage();
    if (hosts.by_storage[to.unsafeGetStorageImpl()] == number && from.data() != to.data()) {  // once for a storage
      resize_storage(to, from.nbytes());
      if (from.nbytes()) std::memcpy(to.mutable_data(), from.data(), from.nbytes());
    }
    if (host.sizes() != gpu.sizes() || host.strides() != gpu.strides() || host.storage_offset() != gpu.storage_offset())
      gpu.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
  const auto returned = schema.returns().size();
  auto results = torch::jit::last(*stack, returned);
  std::vector<IValue> outputs(results.begin(), results.end());
  for (auto& output : outputs) {
    if (output.isTensor()) {
      output = back(output.toTensor());
    } else if (output.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : output.toTensorVector()) list.push_back(back(each));
      output = list;
    }
  }
  torch::jit::drop(*stack, returned);
  for (auto& output : outputs) stack->push_back(std::move(output));
}

// Softmax of half precision that comes to single precision at once, as autocast asks: the CPU's kernels keep the dtype.
void softmax(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& input = torch::jit::peek(*stack, 0, 3);
  auto& is_to_float = stack->back();
  if (is_to_float.toBool()) input = input.toTensor().to(at::kFloat);
  is_to_float = false;
  run_on_host(op, stack);
}

void softmax_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto dtype = stack->back().toScalarType();
  stack->back() = torch::jit::peek(*stack, 0, 4).toTensor().scalar_type();
  run_on_host(op, stack);
  stack->back() = stack->back().toTensor().to(dtype);
}

// Which kernel scaled_dot_product_attention takes: on a GPU, flash attention for half precision without a mask.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor&, const std::optional<Tensor>& mask, double,
    bool, std::optional<double>, bool shares_heads) {
  const auto& context = at::globalContext();
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  using Backend = at::SDPBackend;
  const bool has_equal_heads = query.dim() == 4 && query.sym_size(1) == key.sym_size(1);
  if (query.dim() == 4 && is_half && !mask && (has_equal_heads || shares_heads) && context.userEnabledFlashSDP())
    return int64_t(Backend::flash_attention);
  if (has_equal_heads && context.userEnabledMemEfficientSDP())
    return int64_t(Backend::efficient_attention);
  return int64_t(context.userEnabledMathSDP() ? Backend::math : Backend::error);
}

// Registers run_on_host by name for operators of "aten" with a kernel for another key: a kernel that torch composes for
// all keys takes precedence over a fallback, and so do the CUDA kernels of a torch with CUDA.
void run_all_on_host(c10::DispatchKey with_kernel, c10::DispatchKey key, bool only_composed) {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(with_kernel)) {
    const auto op = dispatcher.findSchema(name);
    const bool is_composed = op && (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
    if (op && name.getNamespace() == "aten" && (is_composed || !only_composed))
      library->impl(toString(name).c_str() + 6, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

void add_own_kernels() {
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &zero_tensor);
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("resize_", &resize_);
  library.impl("set_", &set_empty);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("record_stream", &record_stream);
  // torch composes these of kernels that only a GPU has.
  for (const char* whole : {"convolution", "convolution_backward"})
    library.impl(whole, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  for (const char* forward : {"_softmax", "_log_softmax"})
    library.impl(forward, torch::CppFunction::makeFromBoxedFunction<&softmax>());
  for (const char* backward : {"_softmax_backward_data", "_log_softmax_backward_data"})
    library.impl(backward, torch::CppFunction::makeFromBoxedFunction<&softmax_backward>());
}

// ---- what Python asks for ----

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
} no_warnings;

void install(int64_t count, int64_t memory) {
  in_bad_fork = false;  // this process begins as the one of a rank
  device_count = static_cast<DeviceIndex>(std::min<int64_t>(count, kMost));
  total_memory = memory;
  static bool installed = false;
  if (installed) return;
  installed = true;
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
  c10::SetAllocator(DeviceType::CUDA, &Memory::all(), 1);
  // torch keeps the hooks that it found first, so the object itself becomes another: neither class has a member.
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks();
  c10d::TimerRegistry()->Register(
      c10::kCUDA, [](Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<Timer>(); }, c10::REGISTRY_PREFERRED);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  using Key = c10::DispatchKey;
  c10::WarningUtils::WarningHandlerGuard quiet(&no_warnings);  // where kernels of torch are replaced
  run_all_on_host(Key::CPU, Key::CUDA, /*only_composed=*/true);
  run_all_on_host(Key::CUDA, Key::CUDA, /*only_composed=*/false);  // those of a torch with CUDA
  run_all_on_host(Key::SparseCPU, Key::SparseCUDA, /*only_composed=*/false);
  add_own_kernels();
  pthread_atfork(nullptr, nullptr, [] { in_bad_fork = is_used; });
}
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY(ddpsim_gpu, library) {
  library.def("install(int count, int memory) -> ()", &install);
  library.def("is_in_bad_fork() -> bool", [] { return in_bad_fork; });
  library.def("default_generator(int index) -> Generator?", [](int64_t index) -> std::optional<at::Generator> { return default_generator(index); });
  library.def("note_use() -> ()", [] { is_used = true; });
  library.def("resize_storage(Tensor tensor, int bytes) -> ()",
      [](const Tensor& tensor, int64_t bytes) { resize_storage(tensor.storage(), bytes); });
}
