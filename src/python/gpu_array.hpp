/// \file
/// `GpuArray`: an array in the memory of a GPU between Python and the library, by DLPack.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/dlpack.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/view.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::python {

namespace py = pybind11;

/// A stream as DLPack numbers it: 1 is the legacy default stream, 2 that of the thread, other numbers are handles; -1: the
/// consumer asks for no synchronisation.
using StreamNumber = std::intptr_t;

/// The stream on which a call computes.
[[nodiscard]] cuda::StreamHandle stream_of(StreamNumber number);

/// An array in the memory of a GPU. A thread that holds the interpreter's lock makes and destroys it.
class GpuArray {
 public:
  /// An array of the caller's, ready for work on `stream`. It stays alive as long as this object.
  /// \throws InputError that names the array
  GpuArray(const std::string& name, const py::object& array, StreamNumber stream);
  /// A new one, of fp32, in the memory of GPU `device`: allocated in the order of `stream`, so that the host does not wait.
  GpuArray(const std::vector<Index>& shape, int device, StreamNumber stream);

  [[nodiscard]] const std::vector<Index>& shape() const { return shape_; }
  [[nodiscard]] cuda::Type type() const { return type_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool is_contiguous() const { return contiguous_; }
  /// The stream given to the constructor.
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_; }

  /// `[batch, heads, seq, dim]`, with ones in front. \param rows  one number a row: the last dimension is missing
  template <class T>
  [[nodiscard]] View<T> view(bool rows = false) const {
    return {static_cast<T*>(data_), shape_of(rows)};
  }

  /// Work on `stream` writes it.
  void written_on(cuda::StreamHandle stream);
  /// A capsule. The consumer's stream waits until the array is written.
  [[nodiscard]] py::capsule dlpack(std::optional<StreamNumber> stream) const;
  [[nodiscard]] std::pair<int, int> dlpack_device() const { return {kDLCUDA, device_}; }

 private:
  [[nodiscard]] Shape shape_of(bool rows) const;

  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  std::vector<Index> shape_;
  cuda::Type type_ = cuda::Type::fp32;
  int device_ = 0;
  cuda::StreamHandle stream_;
  bool contiguous_ = true;
  std::shared_ptr<cuda::Event> written_;
};

}  // namespace ring_attention::python
