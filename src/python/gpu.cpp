#include "python/gpu.hpp"

#include <pybind11/stl.h>

#include "python/gpu_array.hpp"
#include "python/ranks.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/gpu_attention.hpp"

namespace ring_attention::python {
namespace {

/// The arrays of a call; those that it does not have are null.
struct GpuArrays {
  const GpuArray &q, &k, &v;
  const GpuArray* bias;

  template <class T>
  [[nodiscard]] AttentionArrays<T> as() const {
    return {q.view<const T>(), k.view<const T>(), v.view<const T>(), of(bias)};
  }
  static std::optional<View<float>> of(const GpuArray* array) {
    return array == nullptr ? std::nullopt : std::optional(array->view<float>());
  }
};
struct GpuResult {
  GpuArray &out, &lse;

  template <class T>
  [[nodiscard]] ResultViews<T> as() const {
    return {out.view<T>(), lse.view<T>(true)};
  }
};
struct GpuGradients {
  GpuArray &q, &k, &v;
  GpuArray* bias;

  [[nodiscard]] GradientViews<float> as() const {
    return {q.view<float>(), k.view<float>(), v.view<float>(), GpuArrays::of(bias).value_or(View<float>())};
  }
};

/// Calls use(a value of the type of q), with q's GPU current.
void with_type(const GpuArray& q, const auto& use) {
  const cuda::CurrentDevice gpu(q.device());
  const auto call = [&] {
    switch (q.type()) {
      case cuda::Type::fp32: return use(float{});
      case cuda::Type::bf16: return use(Bf16{});
      case cuda::Type::fp16: return use(Fp16{});
    }
  };
  call();
}

void written(StreamNumber stream, const GpuArray& q, std::initializer_list<GpuArray*> arrays) {
  const cuda::CurrentDevice gpu(q.device());
  for (GpuArray* array : arrays)
    if (array != nullptr) array->written_on(stream_of(stream));
}

// ---- on all ranks --------------------------------------------------------------------------------------

/// The GpuAttention of the ranks, for the next call.
GpuAttention& attention_of(const Division& division) {
  if (division.same_bits > 0) throw InputError("same_bits has no kernel of a GPU: give arrays of the host");
  GpuCalls& calls = division.ranks->gpu_calls();
  if (!calls.attention) {
    calls.attention = std::make_shared<GpuAttention>(division.ranks->attention_ranks());
    calls.wait = [attention = calls.attention.get()] { attention->wait(); };
    calls.observe = [attention = calls.attention.get()](const Observers& by) {
      attention->how().observers = by;
    };
  }
  GpuOptions gpu;
  if (division.transport == "nccl") gpu.transport = GpuOptions::Transport::nccl;
  if (division.transport == "staged") gpu.transport = GpuOptions::Transport::staged;
  gpu.timeout = division.timeout;
  calls.attention->how() = {division.how, gpu, division.observers, division.sum_numbers};
  return *calls.attention;
}

void ring_forward(const Division& division, const ScoringArguments& arguments, StreamNumber stream,
                  const GpuArray& q, const GpuArray& k, const GpuArray& v, const GpuArray* bias,
                  GpuArray& out, GpuArray& lse) {
  division.ranks->run([&] {
    with_type(q, [&]<class T>(T) {
      attention_of(division).forward<T>(stream_of(stream), GpuArrays{q, k, v, bias}.as<T>(),
                                        GpuResult{out, lse}.as<float>(), division.placement,
                                        division.scoring(arguments, q.view<const T>().shape()));
    });
  });
  written(stream, q, {&out, &lse});
}

py::dict ring_backward(const Division& division, const ScoringArguments& arguments, StreamNumber stream,
                       const GpuArray& grad_out, const GpuArray& q, const GpuArray& k, const GpuArray& v,
                       GpuArray& out, GpuArray& lse, const GpuArray* bias, GpuArray& grad_q, GpuArray& grad_k,
                       GpuArray& grad_v, GpuArray* grad_bias) {
  TermNumbers numbers;
  division.ranks->run([&] {
    with_type(q, [&]<class T>(T) {
      numbers = attention_of(division).backward<T>(
          stream_of(stream), GpuArrays{q, k, v, bias}.as<T>(), GpuResult{out, lse}.as<const float>(),
          grad_out.view<const T>(), GpuGradients{grad_q, grad_k, grad_v, grad_bias}.as(), division.placement,
          division.scoring(arguments, q.view<const T>().shape()));
    });
  });
  written(stream, q, {&grad_q, &grad_k, &grad_v, grad_bias});
  return python_numbers(numbers);
}

// ---- on one process ------------------------------------------------------------------------------------

void unlocked_with_type(const GpuArray& q, const auto& use) {
  const py::gil_scoped_release unlocked;
  with_type(q, use);
}

void copy(const Tensor<float>& from, View<float> to, cuda::StreamHandle stream) {
  cuda::copy<float>(to.elements(), from.view().elements(), stream);
}

/// The arguments of a call on one process, checked as those of a ring of one rank.
template <class T>
Scoring checked(const char* name, const AttentionArrays<T>& arrays, const ScoringArguments& arguments) {
  const Index queries = arrays.q.shape().seq, keys = arrays.k.shape().seq;
  const Placements placement(Placement(PlacementKind::contiguous, queries, 1),
                             Placement(PlacementKind::contiguous, keys, 1));
  Scoring scoring = scoring_of(arguments, arrays.q.shape(), queries, keys);
  Check()(arguments.same_bits == 0, "same_bits has no kernel of a GPU: give arrays of the host");
  const Call<T> call{name, arrays, placement, scoring, ring(), {}};
  check_arguments(Check(), call, call.shared(0, 1));
  cuda::require_equal_widths(arrays.q.shape(), arrays.v.shape());
  return scoring;
}

void attention(const ScoringArguments& arguments, StreamNumber number, const GpuArray& q, const GpuArray& k,
               const GpuArray& v, const GpuArray* bias, GpuArray& out, GpuArray& lse) {
  const cuda::StreamHandle stream = stream_of(number);
  const auto run = [&]<class T>(T) {
    const auto arrays = GpuArrays{q, k, v, bias}.as<T>();
    const Scoring scoring = checked("attention", arrays, arguments);
    const auto result = attention_forward<T>(arrays.q, arrays.k, arrays.v, scoring, {.stream = stream},
                                             arrays.bias.value_or(View<const float>()));
    const auto to = GpuResult{out, lse}.as<float>();
    copy(result.out, to.out, stream);
    copy(result.lse, to.lse, stream);
  };
  unlocked_with_type(q, run);
  written(number, q, {&out, &lse});
}

py::dict attention_backward(const ScoringArguments& arguments, StreamNumber number, const GpuArray& grad_out,
                            const GpuArray& q, const GpuArray& k, const GpuArray& v, GpuArray& out,
                            GpuArray& lse, const GpuArray* bias, GpuArray& grad_q, GpuArray& grad_k,
                            GpuArray& grad_v, GpuArray* grad_bias) {
  const cuda::StreamHandle stream = stream_of(number);
  TermNumbers numbers;
  const auto run = [&]<class T>(T) {
    const auto arrays = GpuArrays{q, k, v, bias}.as<T>();
    const Scoring scoring = checked("attention_backward", arrays, arguments);
    const auto result = GpuResult{out, lse}.as<const float>();
    const Shape& shape = arrays.q.shape();
    Check().array("grad_out", grad_out.view<const T>(), shape);
    Check().array("out", result.out, shape);
    Check().array("lse", result.lse, shape.per_row());
    const BackwardInputs<T> inputs{arrays.q, result.out, result.lse, grad_out.view<const T>(),
                                   arrays.bias.value_or(View<const float>())};
    const auto gradients =
        ring_attention::attention_backward<T>(inputs, arrays.k, arrays.v, scoring, {.stream = stream});
    const auto to = GpuGradients{grad_q, grad_k, grad_v, grad_bias}.as();
    copy(gradients.q, to.q, stream);
    copy(gradients.k, to.k, stream);
    copy(gradients.v, to.v, stream);
    copy(gradients.bias, to.bias, stream);
    numbers.sinks = sink_gradient(inputs, scoring.sinks, stream);
  };
  unlocked_with_type(q, run);
  written(number, q, {&grad_q, &grad_k, &grad_v, grad_bias});
  return python_numbers(numbers);
}

/// As NumPy and PyTorch have it.
const char* name_of_type(const GpuArray& array) {
  return array.type() == cuda::Type::fp32   ? "float32"
         : array.type() == cuda::Type::bf16 ? "bfloat16"
                                            : "float16";
}

/// A copy, after the work of the stream for which the array was taken.
Array on_host(const GpuArray& array) {
  Tensor<float> host;
  unlocked_with_type(array,
                     [&]<class T>(T) { host = cuda::downloaded<T>(array.view<const T>(), array.stream()); });
  return Array(std::move(host));
}

}  // namespace

void bind_gpu(py::module_& module) {
  module.attr("has_gpu") = true;
  py::class_<GpuArray>(module, "GpuArray")
      .def(py::init<std::string, const py::object&, StreamNumber>())
      .def(py::init<const std::vector<Index>&, int, StreamNumber>())
      .def_property_readonly("shape", [](const GpuArray& self) { return py::tuple(py::cast(self.shape())); })
      .def_property_readonly("extents",
                             [](const GpuArray& self) {
                               const Shape shape = self.view<float>().shape();
                               return py::make_tuple(shape.batch, shape.heads, shape.seq, shape.dim);
                             })
      .def("on_host", &on_host)
      .def_property_readonly("type", &name_of_type)
      .def_property_readonly("device", &GpuArray::device)
      .def_property_readonly("is_contiguous", &GpuArray::is_contiguous)
      .def("__dlpack_device__", &GpuArray::dlpack_device)
      .def(
          "__dlpack__",
          [](const GpuArray& self, std::optional<StreamNumber> stream, const py::kwargs&) {
            return self.dlpack(stream);
          },
          py::kw_only(), py::arg("stream") = py::none());
  module.def("gpu_attention", &attention);
  module.def("gpu_attention_backward", &attention_backward);
  module.def("gpu_ring_forward", &ring_forward);
  module.def("gpu_ring_backward", &ring_backward);
}

}  // namespace ring_attention::python
