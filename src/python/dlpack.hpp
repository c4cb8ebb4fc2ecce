/// \file
/// DLPack: how Python's array packages pass arrays to each other without a copy (https://dmlc.github.io/dlpack, version 0.8).
/// An object has `__dlpack__(stream=...)`, which returns a capsule with a DLManagedTensor, and `__dlpack_device__()`.
#pragma once

#include <cstdint>

namespace ring_attention::python {

// The names and the layout are those of the standard.
struct DLDevice {
  std::int32_t device_type;  // kDLCPU, ...
  std::int32_t device_id;
};
enum DLDeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAManaged = 13 };

struct DLDataType {
  std::uint8_t code;  // kDLFloat, ...
  std::uint8_t bits;
  std::uint16_t lanes;
};
enum DLDataTypeCode : std::uint8_t { kDLFloat = 2, kDLBfloat = 4 };

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: C-contiguous
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

}  // namespace ring_attention::python
