#include "python/gpu_array.hpp"

#include <algorithm>
#include <utility>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::python {
namespace {

/// \throws InputError for a type that no kernel has
cuda::Type type_of(const std::string& name, const DLDataType& type) {
  if (type.lanes == 1 && type.code == kDLFloat && type.bits == 32) return cuda::Type::fp32;
  if (type.lanes == 1 && type.code == kDLFloat && type.bits == 16) return cuda::Type::fp16;
  if (type.lanes == 1 && type.code == kDLBfloat && type.bits == 16) return cuda::Type::bf16;
  throw InputError(name + " has a type that a GPU does not compute with: give float32, bfloat16 or float16");
}

bool is_contiguous(const DLTensor& array) {
  if (std::find(array.shape, array.shape + array.ndim, 0) != array.shape + array.ndim)
    return true;  // no element
  std::int64_t step = 1;
  for (int axis = array.ndim; array.strides != nullptr && axis-- > 0; step *= array.shape[axis])
    if (array.shape[axis] > 1 && array.strides[axis] != step) return false;
  return true;
}

/// What a capsule of ours holds.
struct Exported {
  DLManagedTensor managed{};
  std::shared_ptr<void> owner;
  std::vector<std::int64_t> shape;
};

}  // namespace

cuda::StreamHandle stream_of(StreamNumber number) {
  // The numbers 1 and 2 are cudaStreamLegacy and cudaStreamPerThread.
  return number == -1 ? cudaStreamLegacy : reinterpret_cast<cuda::StreamHandle>(number);
}

GpuArray::GpuArray(const std::string& name, const py::object& array, StreamNumber stream)
    : stream_(stream_of(stream)) {
  const auto gpu = array.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  const cuda::CurrentDevice current(gpu.second);
  const py::capsule capsule = array.attr("__dlpack__")(py::arg("stream") = stream);
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");  // it is ours now
  owner_ = std::shared_ptr<void>(managed, [managed](void*) {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
  const DLTensor& tensor = managed->dl_tensor;
  if (tensor.device.device_type != kDLCUDA && tensor.device.device_type != kDLCUDAManaged)
    throw InputError(name + " is not in the memory of a GPU, and q is");
  type_ = type_of(name, tensor.dtype);
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
  device_ = tensor.device.device_id;
  contiguous_ = python::is_contiguous(tensor);
}

GpuArray::GpuArray(const std::vector<Index>& shape, int device, StreamNumber stream)
    : shape_(shape), device_(device), stream_(stream_of(stream)) {
  Index elements = 1;
  for (const Index extent : shape) elements *= extent;
  const cuda::CurrentDevice current(device);
  const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
  if (bytes > 0) cuda::check(cudaMallocAsync(&data_, bytes, stream_));
  owner_ = std::shared_ptr<void>(data_, [device](void* memory) {
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device);
    // Consumers may be on any stream, and cudaFree does not wait for this memory.
    (void)cudaDeviceSynchronize();
    (void)cudaFree(memory);
    (void)cudaSetDevice(before);
  });
}

Shape GpuArray::shape_of(bool rows) const {
  std::vector<Index> extents = shape_;
  if (rows) extents.push_back(1);
  require(extents.size() <= 4, "GpuArray: more than four dimensions");
  extents.insert(extents.begin(), 4 - extents.size(), 1);
  return {extents[0], extents[1], extents[2], extents[3]};
}

void GpuArray::written_on(cuda::StreamHandle stream) {
  if (!written_) written_ = std::make_shared<cuda::Event>();
  written_->record(stream);
}

py::capsule GpuArray::dlpack(std::optional<StreamNumber> stream) const {
  if (stream && *stream == 0)
    throw InputError("stream is 0: DLPack has 1 for the default stream, 2 for a thread's default stream");
  const cuda::CurrentDevice current(device_);
  if (written_ && stream != -1) written_->block(stream_of(stream.value_or(1)));
  auto exported = std::make_unique<Exported>();
  exported->owner = owner_;
  exported->shape.assign(shape_.begin(), shape_.end());
  exported->managed.dl_tensor = {data_,
                                 {kDLCUDA, device_},
                                 static_cast<std::int32_t>(shape_.size()),
                                 {kDLFloat, 32, 1},
                                 exported->shape.data(),
                                 nullptr,
                                 0};
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
  const auto destroy = [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // a consumer has taken it
    auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  };
  return py::capsule(&exported.release()->managed, "dltensor", destroy);
}

}  // namespace ring_attention::python
