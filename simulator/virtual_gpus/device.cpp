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
// Refused: PrivateUse1, torch's key for devices outside its tree: programs and torch itself ask for "cuda" by name. A
// Python tensor subclass with a device of its own: what C++ makes (the Reducer's buckets, gradients) has no subclass.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
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
#include <pthread.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <functional>
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
bool in_bad_fork = false;
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
    auto& stat = stats[block.device];
    auto step = [more](Stat& each, size_t amount) { more ? each.increase(amount) : each.decrease(amount); };
    for (auto* bytes : {&stat.allocated_bytes, &stat.reserved_bytes, &stat.active_bytes, &stat.requested_bytes})
      step((*bytes)[0], block.bytes);
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

  // Makes an operator's result on the CPU memory of the current device.
  c10::DataPtr adopt(const c10::Storage& host) {
    check_free(host.nbytes());
    return take({host.mutable_data(), host.nbytes(), current_device, host});
  }

  void check_free(size_t bytes) {
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

  static PinnedMemory& all() {
    static auto* memory = new PinnedMemory;
    return *memory;
  }
  static void release(void* memory) {
    all().pinned.erase(memory);
    std::free(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
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
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<GpuGenerator>(index < 0 ? ::current_device : checked(index));
  }
  bool isPinnedPtr(const void* memory) const override { return PinnedMemory::all().pinned.count(memory) > 0; }
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

// Returns a CPU tensor in the memory of a GPU's; `owner` keeps that memory, by default nobody does.
Tensor on_host(const Tensor& tensor, c10::Storage* owner = nullptr) {
  const auto& storage = tensor.storage();
  auto* context = owner ? new c10::Storage(*owner) : nullptr;
  auto release = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  c10::DataPtr memory(storage.mutable_data(), context, context ? +release : &c10::detail::deleteNothing, Device(DeviceType::CPU));
  c10::Storage shared(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory),
      c10::GetAllocator(DeviceType::CPU), /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

Tensor new_on(Device device, const Tensor& host) {
  OnDevice there(device);
  const auto& from = host.storage();
  if (from.nbytes() == 0 || from.use_count() > 1) {  // something else has the memory, too
    auto made = at::detail::empty_strided_generic(host.sizes(), host.strides(), &Memory::all(), kKeys, host.scalar_type());
    if (made.storage().nbytes()) std::memcpy(made.storage().mutable_data(), host.const_data_ptr(), made.storage().nbytes());
    return made;
  }
  c10::Storage taken(c10::Storage::use_byte_size_t(), from.nbytes(), Memory::all().adopt(from), &Memory::all(), true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(taken), kKeys, host.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return made;
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

Tensor host_alias(const Tensor& tensor) { return tensor.is_cuda() ? on_host(tensor) : tensor; }

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto host = host_alias(to);
  host.copy_(host_alias(from));
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  at::AutoDispatchBelowADInplaceOrView below;
  host_alias(to).copy_(host_alias(from));
  return to;
}

at::Scalar local_scalar(const Tensor& tensor) { return at::_local_scalar_dense(on_host(tensor)); }

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
  std::vector<std::pair<Tensor, Tensor>> pairs;  // of the host's form, and the GPU's tensor
  std::optional<Device> device, other;
  std::optional<DrawsFor> draws;
  auto to_host = [&](const Tensor& tensor) {
    for (auto& [host, gpu] : pairs)
      if (gpu.is_same(tensor)) return host;
    if (tensor.layout() == at::kSparse) {
      const auto indices = sparse(tensor)->indices(), values = sparse(tensor)->values();
      pairs.emplace_back(on_host(indices), indices);
      pairs.emplace_back(on_host(values), values);
      const auto last = pairs.size();
      pairs.emplace_back(new_sparse(c10::DispatchKey::SparseCPU, tensor, pairs[last - 2].first, pairs[last - 1].first), tensor);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage(), toString(name), " of a tensor of layout ", tensor.layout(),
          " has no form on virtual GPUs: take dense tensors, or the CPU");
      pairs.emplace_back(on_host(tensor), tensor);
    }
    return pairs.back().first;
  };
  auto turn = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.device() != device && (tensor.is_cuda() || tensor.dim())) {
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
  for (auto& value : values) {
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
    }
  }
  if (other && !takes_several_devices(toString(name)))
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
        device->is_cuda() ? *device : *other, " and ", device->is_cuda() ? *other : *device, "! (in ", toString(name), ")");
  Device home = named ? *named : Device(DeviceType::CUDA, current_device);
  if (!named && !pairs.empty()) home = pairs.front().second.device();
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

  auto refresh_dense = [](const Tensor& host, const Tensor& gpu) {  // an operator may resize what it writes
    if (host.storage().data() != gpu.storage().data()) {
      resize_storage(gpu.storage(), host.storage().nbytes());
      if (host.storage().nbytes()) std::memcpy(gpu.storage().mutable_data(), host.storage().data(), host.storage().nbytes());
    }
    if (host.sizes() != gpu.sizes() || host.strides() != gpu.strides() || host.storage_offset() != gpu.storage_offset())
      gpu.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  };
  std::function<Tensor(const Tensor&)> back = [&](const Tensor& result) -> Tensor {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (auto& [host, gpu] : pairs)
      if (host.is_same(result)) return gpu;
    for (auto& [host, gpu] : pairs)
      if (result.has_storage() && host.has_storage() && host.storage().is_alias_of(result.storage())) {  // a view
        auto view = at::detail::make_tensor<c10::TensorImpl>(
            c10::TensorImpl::VIEW, c10::Storage(gpu.storage()), gpu.key_set(), result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    if (result.layout() == at::kSparse)
      return new_sparse(c10::DispatchKey::SparseCUDA, result, back(sparse(result)->indices()), back(sparse(result)->values()));
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided, toString(name), " makes a tensor of layout ",
        result.layout(), ", which has no form on virtual GPUs: take dense tensors, or the CPU");
    return new_on(home, result);
  };
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    const auto [host, gpu] = pairs[pair];
    if (gpu.layout() == at::kStrided) {
      refresh_dense(host, gpu);
    } else {
      sparse(gpu)->resize_(sparse(host)->sparse_dim(), sparse(host)->dense_dim(), host.sizes());
      sparse(gpu)->set_indices_and_values_unsafe(back(sparse(host)->indices()), back(sparse(host)->values()));
      sparse(gpu)->set_coalesced(sparse(host)->coalesced());
    }
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

// Which kernel scaled_dot_product_attention takes: on a GPU, flash attention for half precision without a mask.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor&, const std::optional<Tensor>& mask, double,
    bool, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  using Backend = at::SDPBackend;
  if (query.dim() == 4 && is_half && !mask && context.userEnabledFlashSDP()) return int64_t(Backend::flash_attention);
  if (query.dim() == 4 && query.sym_size(1) == key.sym_size(1) && context.userEnabledMemEfficientSDP())
    return int64_t(Backend::efficient_attention);
  return int64_t(context.userEnabledMathSDP() ? Backend::math : Backend::error);
}

// Registers run_on_host by name for operators of "aten" with a kernel for another key. A kernel that torch composes for
// all keys would come before a fallback, and so would the CUDA kernels of a torch with CUDA.
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
}

// ---- what Python asks for ----

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
} no_warnings;

void install(int64_t count, int64_t memory) {
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
  pthread_atfork(nullptr, nullptr, [] { in_bad_fork = true; });
}
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY(ddpsim_gpu, library) {
  library.def("install(int count, int memory) -> ()", &install);
  library.def("set_device(int index) -> ()", [](int64_t index) { current_device = checked(index); });
  library.def("get_device() -> int", []() -> int64_t { return current_device; });
  library.def("is_in_bad_fork() -> bool", [] { return in_bad_fork; });
  library.def("default_generator(int index) -> Generator?", [](int64_t index) -> std::optional<at::Generator> { return default_generator(index); });
  library.def("host_memory(Tensor tensor) -> Tensor", [](const Tensor& tensor) {
    auto storage = tensor.storage();
    return on_host(tensor, &storage);
  });
  library.def("resize_storage(Tensor tensor, int bytes) -> ()",
      [](const Tensor& tensor, int64_t bytes) { resize_storage(tensor.storage(), bytes); });
}
