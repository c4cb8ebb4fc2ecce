// A stand-in for libcudart_static.a: device memory is host memory, streams finish at once, and kernels are interpreted.
// PTX_CAPABILITY: the compute capability, 90 or 80.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "ptx/fat_binary.hpp"

namespace ptx {
namespace {

struct Allocation {
  std::size_t bytes;
  cudaMemoryType type;
};
std::map<u64, Allocation>& allocations() {
  static auto& all = *new std::map<u64, Allocation>;
  return all;
}
std::recursive_mutex& lock() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}
std::string error_text;  // of the last launch that failed
bool failed = false;
cudaError_t status() { return failed ? cudaErrorLaunchFailure : cudaSuccess; }

int capability() {
  static const int value = static_cast<int>(setting("PTX_CAPABILITY", 90));
  return value;
}
std::size_t shared_limit() { return (capability() >= 90 ? 227 : 163) * std::size_t{1024}; }

const std::pair<const u64, Allocation>* allocation_of(u64 address) {
  const auto after = allocations().upper_bound(address);
  if (after == allocations().begin()) return nullptr;
  const auto& found = *std::prev(after);
  return address < found.first + found.second.bytes ? &found : nullptr;
}

cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type) {
  const std::lock_guard guard(lock());
  const std::size_t size = (bytes + 511) / 256 * 256;  // with bytes of no allocation at the end
  *memory = std::aligned_alloc(256, size);
  std::memset(*memory, 0xff, size);
  allocations()[reinterpret_cast<u64>(*memory)] = {bytes, type};
  return cudaSuccess;
}
cudaError_t release(void* memory) {
  const std::lock_guard guard(lock());
  if (memory == nullptr) return cudaSuccess;
  const auto found = allocations().find(reinterpret_cast<u64>(memory));
  if (found == allocations().end()) return cudaErrorInvalidValue;
  std::memset(memory, 0xff, found->second.bytes);
  allocations().erase(found);
  std::free(memory);
  return cudaSuccess;
}

/// Fails as the documentation of cuTensorMapEncodeTiled says. What is not modelled fails as well.
const char* problem_with(const TensorMap& t, CUtensorMapInterleave interleave, CUtensorMapFloatOOBfill fill,
                         const cuuint32_t* element_stride) {
  if (t.address % 16 != 0) return "globalAddress is not a multiple of 16";
  if (t.rank < 3 || t.rank > 4 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return "not modelled";
  for (u32 i = 0; i < t.rank; ++i) {
    if (t.size[i] == 0 || t.size[i] > 1ULL << 32U) return "globalDim";
    if (t.box[i] == 0 || t.box[i] > 256) return "boxDim";
    if (element_stride[i] != 1) return "elementStrides other than 1 are not modelled";
    if (i + 1 == t.rank) break;
    if (t.stride[i] % 16 != 0 || t.stride[i] >= 1ULL << 40U) return "globalStrides";
    if (t.stride[i] < (i == 0 ? t.size[0] * t.element : t.stride[i - 1] * t.size[i]))
      return "globalStrides smaller than the dimension";
  }
  const u32 row = t.box[0] * t.element;
  if (row % 16 != 0 || (t.swizzle != 0 && row > 16U << t.swizzle)) return "the inner box and the swizzle";
  return nullptr;
}

CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  TensorMap t{.address = reinterpret_cast<u64>(address),
              .rank = rank,
              .element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4U : 2U,
              .swizzle = static_cast<u32>(swizzle)};
  for (u32 i = 0; i < rank && rank <= 4; ++i) {
    t.size[i] = size[i];
    t.box[i] = box[i];
    if (i + 1 < rank) t.stride[i] = stride[i];
  }
  const char* problem = problem_with(t, interleave, fill, element_stride);
  if (reinterpret_cast<u64>(map) % 64 != 0) problem = "the map is not aligned to 64 bytes";
  if (problem != nullptr) {
    std::fprintf(stderr, "PTX ERROR: cuTensorMapEncodeTiled: %s\n", problem);
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(map, 0xee, sizeof *map);
  std::memcpy(map, &t, sizeof t);
  return CUDA_SUCCESS;
}

cudaError_t launch(KernelStub& stub, dim3 grid, dim3 block, void** arguments, std::size_t shared) {
  const std::lock_guard guard(lock());
  Kernel* kernel = kernel_of(stub, capability());
  if (kernel == nullptr) {
    std::fprintf(stderr, "PTX ERROR: this program has no PTX of %s for sm_%d\n", stub.name.c_str(),
                 capability());
    return cudaErrorNoKernelImageForDevice;
  }
  if (kernel->static_shared + shared > shared_limit() || shared > stub.dynamic_limit)
    return cudaErrorInvalidValue;
  const u32 threads = block.x * block.y * block.z;
  if (grid.x * grid.y * grid.z == 0 || grid.y > 65535 || grid.z > 65535 || threads == 0 || threads > 1024)
    return cudaErrorInvalidConfiguration;
  std::vector<u8> parameters(kernel->parameter_bytes);
  for (std::size_t i = 0; i < kernel->parameters.size(); ++i)
    std::memcpy(&parameters[kernel->parameters[i].offset], arguments[i], kernel->parameters[i].size);
  const std::string error = run_kernel(*kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
                                       static_cast<u32>(shared), std::move(parameters));
  if (!error.empty()) {
    std::fprintf(stderr, "PTX ERROR: %s\n", error.c_str());
    error_text = error;
    failed = true;
  }
  return cudaSuccess;
}

}  // namespace

u64 end_of_allocation(u64 address) {
  const auto* found = allocation_of(address);
  return found == nullptr ? 0 : found->first + found->second.bytes;
}

}  // namespace ptx

using namespace ptx;  // NOLINT(google-build-using-namespace)

extern "C" {

// ---- launches

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local Configuration pushed;
// NOLINTBEGIN(bugprone-reserved-identifier): the names that nvcc's code calls
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t) {
  KernelStub* stub = find_function(host);
  return stub == nullptr ? cudaErrorInvalidDeviceFunction : launch(*stub, grid, block, arguments, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* host, void** arguments) {
  return cudaLaunchKernel(host, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}
// NOLINTEND(bugprone-reserved-identifier)
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute what, int value) {
  KernelStub* stub = find_function(host);
  if (stub == nullptr) return cudaErrorInvalidDeviceFunction;
  if (what != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (static_cast<std::size_t>(value) > shared_limit()) return cudaErrorInvalidValue;
  stub->dynamic_limit = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  const bool known = std::string(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
  if (result != nullptr) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* unused, size_t* all) { return *unused = *all = 1ULL << 33U, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(shared_limit()); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "the PTX interpreter");
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}

// ---- errors. A launch that failed is reported until it is asked for.

const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaSuccess              ? "cudaSuccess"
         : e == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure"
                                       : "cudaError";
}
const char* cudaGetErrorString(cudaError_t e) {
  static thread_local std::string text;
  text = e == cudaErrorLaunchFailure ? error_text : "error " + std::to_string(e);
  return text.c_str();
}
cudaError_t cudaGetLastError() {
  const cudaError_t e = status();
  failed = false;
  return e;
}

// ---- memory

cudaError_t cudaMalloc(void** p, size_t n) { return allocate(p, n, cudaMemoryTypeDevice); }
cudaError_t cudaMallocFromPoolAsync(void** p, size_t n, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(p, n);
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) { return allocate(p, n, cudaMemoryTypeHost); }
cudaError_t cudaFree(void* p) { return release(p); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return release(p); }
cudaError_t cudaFreeHost(void* p) { return release(p); }
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  return *pool = reinterpret_cast<cudaMemPool_t>(new int), cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return delete reinterpret_cast<int*>(pool), cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  return std::memset(value, 0, 8), cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const std::lock_guard guard(lock());
  const auto* found = allocation_of(reinterpret_cast<u64>(p));
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = found == nullptr ? cudaMemoryTypeUnregistered : found->second.type;
  attributes->device = found == nullptr ? -2 : 0;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t n) { return std::memset(p, value, n), status(); }
cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t) { return cudaMemset(p, value, n); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) {
  return std::memmove(to, from, n), status();
}

// ---- streams and events

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = reinterpret_cast<cudaStream_t>(new int), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return delete reinterpret_cast<int*>(stream), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return status(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

using EventTime = std::chrono::steady_clock::time_point;
static EventTime& time_of(cudaEvent_t event) { return *reinterpret_cast<EventTime*>(event); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return *event = reinterpret_cast<cudaEvent_t>(new EventTime), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete &time_of(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return time_of(event) = std::chrono::steady_clock::now(), cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return status(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return status(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(time_of(to) - time_of(from)).count();
  return cudaSuccess;
}

}  // extern "C"
