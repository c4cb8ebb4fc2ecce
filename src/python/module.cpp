// The extension module ring_attention._core: what the package in Python calls. Its arrays have four dimensions and one
// type; the package brings those of a user into this form, and the results back.

#include <pybind11/stl.h>

#include <chrono>

#include "python/arrays.hpp"
#include "python/gpu.hpp"
#include "python/letters.hpp"
#include "python/ranks.hpp"
#include "python/scoring.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/call.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/parallel/same_bits_device.hpp"

namespace ring_attention::python {
namespace {

/// Lets an interrupt (Ctrl-C) end a long call: looks for one every 0.1 s. A call in C++ holds no lock of the interpreter,
/// and getting it may take some milliseconds.
class InterruptCheck {
 public:
  void operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

 private:
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
};

TokenRanges ranges_of(const std::vector<Index>& positions) {
  TokenRanges ranges;
  for (const Index position : positions) {
    if (!ranges.empty() && ranges.back().count == 1 && position > ranges.back().begin)
      ranges.back() = {ranges.back().begin, position - ranges.back().begin, 2};
    else if (!ranges.empty() && position == ranges.back().position(ranges.back().count))
      ++ranges.back().count;
    else
      ranges.push_back({position, 1, 1});
  }
  return ranges;
}

/// The cores of this machine. \throws InputError for the same bits in double
template <class T>
std::unique_ptr<Device<T>> device_of(const CpuOptions& options) {
  if (options.same_bits == 0) return std::make_unique<CpuDevice<T>>(options);
  if constexpr (std::is_same_v<T, float>)
    return std::make_unique<SameBitsDevice>(options);
  else
    throw InputError("same_bits needs arrays of float");
}

/// The arguments of a call on one process, checked as those of a ring of one rank.
template <class T>
struct OneProcess {
  OneProcess(const char* name, View<const T> q, View<const T> k, View<const T> v,
             const ScoringArguments& arguments, int threads, std::optional<View<const T>> bias, bool backward)
      : placement(Placement(PlacementKind::contiguous, q.shape().seq, 1),
                  Placement(PlacementKind::contiguous, k.shape().seq, 1)),
        queries(arguments.positions ? ranges_of(arguments.positions->first) : whole(q.shape().seq)),
        keys(arguments.positions ? ranges_of(arguments.positions->second) : whole(k.shape().seq)),
        scoring(scoring_of(arguments, q.shape(), q.shape().seq, k.shape().seq)),
        arrays{q, k, v, bias},
        call{name, arrays, placement, scoring, ring(), {}},
        cpu{threads > 0 ? threads : usable_cores(), best_isa(), arguments.same_bits},
        device(device_of<T>(cpu)) {
    const SharedAttention shared = call.shared(0, 1);
    check_arguments(check, call, shared);
    device->check(shared, backward);
  }
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;

  [[nodiscard]] ExpectedKeys all_keys() const { return {{arrays.k.shape(), arrays.v.shape().dim}, 1}; }

  Placements placement;
  TokenRanges queries, keys;
  Scoring scoring;
  AttentionArrays<T> arrays;
  Call<T> call;
  CpuOptions cpu;
  std::unique_ptr<Device<T>> device;
  Check check;
};

template <class T>
py::tuple attention(const py::buffer& q_array, const py::buffer& k_array, const py::buffer& v_array,
                    const ScoringArguments& arguments, const std::optional<py::buffer>& bias_array,
                    int threads) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array);
  const OptionalInput<T> bias("bias", bias_array);
  AttentionResult<T> result;
  {
    const py::gil_scoped_release unlocked;
    const OneProcess<T> one("attention", q.view(), k.view(), v.view(), arguments, threads, bias.view(),
                            false);
    const auto engine =
        one.device->forward(one.scoring, q.view(), one.queries, one.call.bias(), one.all_keys());
    engine->accumulate({k.view(), v.view(), one.keys}, InterruptCheck());
    result = engine->finish();
  }
  return py::make_tuple(Array(std::move(result.out)), Array(std::move(result.lse)));
}

template <class T>
py::tuple attention_backward(const py::buffer& grad_out_array, const py::buffer& q_array,
                             const py::buffer& k_array, const py::buffer& v_array,
                             const py::buffer& out_array, const py::buffer& lse_array,
                             const ScoringArguments& arguments, const std::optional<py::buffer>& bias_array,
                             int threads, const std::optional<py::buffer>& grad_lse_array) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array), grad_out("grad_out", grad_out_array),
      out("out", out_array), lse("lse", lse_array);
  const OptionalInput<T> bias("bias", bias_array), grad_lse("grad_lse", grad_lse_array);
  Gradients<T> gradients;
  {
    const py::gil_scoped_release unlocked;
    const OneProcess<T> one("attention_backward", q.view(), k.view(), v.view(), arguments, threads,
                            bias.view(), true);
    const Shape shape = q.view().shape();
    one.check.array("grad_out", grad_out.view(), one.call.out_shape());
    one.check.array("out", out.view(), one.call.out_shape());
    one.check.array("lse", lse.view(), shape.per_row());
    if (grad_lse.view()) one.check.array("grad_lse", *grad_lse.view(), shape.per_row());
    const BackwardInputs<T> forward{q.view(),        out.view(),      lse.view(),
                                    grad_out.view(), one.call.bias(), grad_lse.view()};
    const Device<T>& device = *one.device;
    const Index terms =
        one.cpu.same_bits > 0
            ? std::ssize(Tiling(one.cpu.same_bits, one.scoring.mask.documents).cuts(shape.seq)) *
                  shape.heads / k.view().shape().heads
            : 0;
    const GradientAccumulator sums_k = device.gradient_accumulator(shape.dim, terms),
                              sums_v = device.gradient_accumulator(v.view().shape().dim, terms);
    gradients.k = Tensor<T>(k.view().shape().with_dim(sums_k.dim));
    gradients.v = Tensor<T>(v.view().shape().with_dim(sums_v.dim));
    const auto engine = device.backward(one.scoring, forward, one.queries, one.all_keys());
    engine->accumulate({k.view(), v.view(), one.keys}, {gradients.k, gradients.v}, InterruptCheck());
    gradients.q = engine->finish();
    gradients.terms() = engine->term_gradients();
    if constexpr (std::is_same_v<T, float>)
      if (sums_k.rounded) {
        gradients.k = sums_k.rounded(gradients.k.view());
        gradients.v = sums_v.rounded(gradients.v.view());
      }
    const double unit = one.cpu.same_bits > 0 ? exact_sink_unit(largest_sink_term(forward, one.scoring.sinks),
                                                                shape.batch * shape.seq)
                                              : 0;
    gradients.sinks = sink_gradient(forward, one.scoring.sinks, unit);
  }
  return python_gradients(std::move(gradients));
}

void bind_errors(py::module_& module) {
  static const py::exception<Error> error(module, "Error", PyExc_RuntimeError);
  static const py::exception<InputError> input(module, "InputError", PyExc_ValueError);
  static const py::exception<AgreedError> agreed(module, "AgreedError", input.ptr());
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const AgreedError& e) {
      PyErr_SetString(agreed.ptr(), e.what());
    } catch (const LateError& e) {
      PyErr_SetString(PyExc_TimeoutError, e.what());
    } catch (const InputError& e) {
      PyErr_SetString(input.ptr(), e.what());
    } catch (const Error& e) {
      PyErr_SetString(error.ptr(), e.what());
    }
  });
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  bind_errors(module);
  py::class_<Array>(module, "Array", py::buffer_protocol()).def_buffer(&Array::info);
  bind_scoring(module);
  module.attr("__version__") = RING_ATTENTION_VERSION;
  module.attr("default_tile") = Tiling::default_size;
  module.def(
      "attention", [](const py::buffer& q, const py::buffer& k, const py::buffer& v,
                      const ScoringArguments& arguments, const std::optional<py::buffer>& bias, int threads) {
        return (is_double(q) ? attention<double> : attention<float>)(q, k, v, arguments, bias, threads);
      });
  module.def(
      "attention_backward",
      [](const py::buffer& grad_out, const py::buffer& q, const py::buffer& k, const py::buffer& v,
         const py::buffer& out, const py::buffer& lse, const ScoringArguments& arguments,
         const std::optional<py::buffer>& bias, int threads, const std::optional<py::buffer>& grad_lse) {
        return (is_double(q) ? attention_backward<double> : attention_backward<float>)(grad_out, q, k, v, out,
                                                                                       lse, arguments, bias,
                                                                                       threads, grad_lse);
      });
  bind_ranks(module);
  bind_gpu(module);
}

}  // namespace ring_attention::python
