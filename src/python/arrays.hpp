/// \file
/// Arrays between Python and the library, without copies, through Python's buffer protocol: one build serves all
/// versions of NumPy.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention::python {

namespace py = pybind11;

/// An array of the caller's, `[batch, heads, seq, dim]` and C-contiguous. It stays alive as long as this object, which
/// is made and destroyed by a thread that holds the interpreter's lock.
template <class T>
class Input {
 public:
  /// \throws InputError that names the array
  Input(const char* name, const py::buffer& array) : info_(array.request()) {
    if (info_.format != py::format_descriptor<T>::format())
      throw InputError(std::string(name) + " has elements of type '" + info_.format + "' where '" +
                       py::format_descriptor<T>::format() + "' is due");
    if (info_.ndim != 4) throw InputError(std::string(name) + " does not have four dimensions");
    py::ssize_t step = info_.itemsize;
    for (std::size_t axis = 4; axis-- > 0; step *= info_.shape[axis])
      if (info_.size > 0 && info_.shape[axis] > 1 && info_.strides[axis] != step)
        throw InputError(std::string(name) + " is not C-contiguous");
  }

  [[nodiscard]] View<const T> view() const {
    return {static_cast<const T*>(info_.ptr),
            {info_.shape[0], info_.shape[1], info_.shape[2], info_.shape[3]}};
  }

 private:
  py::buffer_info info_;
};

/// An array that may be None: the empty view.
template <class T>
class OptionalInput {
 public:
  OptionalInput(const char* name, const std::optional<py::buffer>& array) {
    if (array) input_.emplace(name, *array);
  }
  [[nodiscard]] std::optional<View<const T>> view() const {
    return input_ ? std::optional(input_->view()) : std::nullopt;
  }

 private:
  std::optional<Input<T>> input_;
};

/// An array of the library's, which Python owns. numpy.asarray takes it without a copy.
class Array {
 public:
  template <class T>
  explicit Array(Tensor<T>&& tensor) : Array(std::make_shared<Tensor<T>>(std::move(tensor))) {}

  [[nodiscard]] py::buffer_info info() const {
    std::vector<py::ssize_t> strides(extents_.size());
    py::ssize_t step = itemsize_;
    for (std::size_t axis = extents_.size(); axis-- > 0; step *= extents_[axis]) strides[axis] = step;
    return {data_,    itemsize_,         format_, static_cast<py::ssize_t>(extents_.size()),
            extents_, std::move(strides)};
  }

 private:
  template <class T>
  explicit Array(std::shared_ptr<Tensor<T>> tensor)
      : data_(tensor->data()), itemsize_(sizeof(T)), format_(py::format_descriptor<T>::format()) {
    const Shape& shape = tensor->shape();
    extents_ = {shape.batch, shape.heads, shape.seq, shape.dim};
    owner_ = std::move(tensor);
  }

  std::shared_ptr<void> owner_;
  void* data_;
  py::ssize_t itemsize_;
  std::string format_;
  std::vector<py::ssize_t> extents_;
};

/// Are the elements double? Else they are to be float.
[[nodiscard]] inline bool is_double(const py::buffer& array) {
  return array.request().format == py::format_descriptor<double>::format();
}

}  // namespace ring_attention::python
