# The source files of each folder, one a line, bottom folder first. Whoever builds a library or a program of them takes
# these lists: src itself, the GPU emulator and the benchmarks.

set(core_sources
    ring_attention/core/allocation.cpp
    ring_attention/core/compare.cpp
    ring_attention/core/eigen.cpp
    ring_attention/core/error.cpp
    ring_attention/core/memory.cpp
    ring_attention/core/random.cpp
    ring_attention/core/tensor.cpp
    ring_attention/core/text.cpp)
set(mpi_sources
    ring_attention/mpi/agreement.cpp
    ring_attention/mpi/collectives.cpp
    ring_attention/mpi/communicator.cpp
    ring_attention/mpi/end.cpp
    ring_attention/mpi/host.cpp)
set(attention_sources
    ring_attention/attention/backward.cpp
    ring_attention/attention/blockwise.cpp
    ring_attention/attention/dense_softmax.cpp
    ring_attention/attention/documents.cpp
    ring_attention/attention/dropout.cpp
    ring_attention/attention/exact/state.cpp
    ring_attention/attention/exact/sum.cpp
    ring_attention/attention/mask.cpp
    ring_attention/attention/mask_sets.cpp
    ring_attention/attention/partial.cpp
    ring_attention/attention/reference.cpp
    ring_attention/attention/reference_errors.cpp
    ring_attention/attention/row_dot.cpp
    ring_attention/attention/scoring.cpp
    ring_attention/attention/scoring_arguments.cpp
    ring_attention/attention/shapes.cpp
    ring_attention/attention/sink.cpp
    ring_attention/attention/sink_gradient.cpp
    ring_attention/attention/exact/tiling.cpp)
set(isa_sources #
    ring_attention/cpu/isa.cpp)
set(cpu_sources
    ring_attention/cpu/backward.cpp
    ring_attention/cpu/engine.cpp
    ring_attention/cpu/exact/backward.cpp
    ring_attention/cpu/exact/forward.cpp
    ring_attention/cpu/kernel_list.cpp
    ring_attention/cpu/lanes.cpp
    ring_attention/cpu/threads.cpp)
set(ring_sources
    ring_attention/ring/kv_hops.cpp
    ring_attention/ring/placement.cpp
    ring_attention/ring/transports/loopback.cpp
    ring_attention/ring/transports/odd_even.cpp
    ring_attention/ring/transports/overlapped.cpp
    ring_attention/ring/transports/peers.cpp)
set(parallel_sources
    ring_attention/parallel/all_gather/all_gather.cpp
    ring_attention/parallel/balance/balanced.cpp
    ring_attention/parallel/balance/deal.cpp
    ring_attention/parallel/balance/search.cpp
    ring_attention/parallel/balance/tiles.cpp
    ring_attention/parallel/collectives/all_to_all.cpp
    ring_attention/parallel/collectives/mpi_all_to_all.cpp
    ring_attention/parallel/collectives/sum.cpp
    ring_attention/parallel/context_memory.cpp
    ring_attention/parallel/context_parallel.cpp
    ring_attention/parallel/decode/decode.cpp
    ring_attention/parallel/decode/sharded_cache.cpp
    ring_attention/parallel/observer.cpp
    ring_attention/parallel/processor.cpp
    ring_attention/parallel/term_gradients.cpp
    ring_attention/parallel/trace.cpp
    ring_attention/parallel/ulysses/heads.cpp)

# Above the library, not installed.
set(io_sources
    io/npy.cpp
    io/npy_array.cpp
    io/npy_dictionary.cpp
    io/npy_file.cpp
    io/npy_transfer.cpp
    io/trace_file.cpp
    io/whole_file.cpp)
set(model_sources
    model/adamw.cpp
    model/bandit.cpp
    model/embedding.cpp
    model/feed_forward.cpp
    model/gradient_sum.cpp
    model/heads.cpp
    model/layer.cpp
    model/line_retrieval.cpp
    model/mesh.cpp
    model/parameters.cpp
    model/products.cpp
    model/rms_norm.cpp
    model/shape.cpp
    model/task.cpp
    model/transformer.cpp
    model/weights.cpp)
set(plan_sources
    plan/best_ulysses.cpp
    plan/machine.cpp
    plan/memory.cpp
    plan/model_shape.cpp
    plan/network.cpp
    plan/ring_step.cpp
    plan/ring_time.cpp
    plan/search.cpp
    plan/step_time.cpp
    plan/volume.cpp)
set(api_sources # the one call for users of the library
    ring_attention/attention_ranks.cpp
    ring_attention/call.cpp
    ring_attention/observed_call.cpp
    ring_attention/peer_ranks.cpp
    ring_attention/ring_attention.cpp)

# The GPU parts: what runs on the host, kernels for every GPU, and kernels that need Hopper.
set(cuda_sources
    ring_attention/cuda/check.cpp
    ring_attention/cuda/choice.cpp
    ring_attention/cuda/device.cpp
    ring_attention/cuda/device_tensor.cpp
    ring_attention/cuda/engine.cpp
    ring_attention/cuda/kernel_list.cpp
    ring_attention/cuda/task.cpp
    ring_attention/gpu_attention.cpp
    ring_attention/parallel/cuda_links.cpp
    ring_attention/parallel/collectives/staged_all_to_all.cpp
    ring_attention/ring/transports/staged.cpp)
set(cuda_launch_sources # of launch.cuh, which the emulator replaces
    ring_attention/cuda/launch.cpp)
set(nccl_sources #
    ring_attention/parallel/collectives/nccl_all_to_all.cpp
    ring_attention/ring/transports/nccl.cpp)
set(kernel_sources
    ring_attention/cuda/kernels/forward_0_naive.cu
    ring_attention/cuda/kernels/forward_1_tiled.cu
    ring_attention/cuda/kernels/forward_2_mma.cu
    ring_attention/cuda/kernels/backward_1_tiled.cu
    ring_attention/cuda/kernels/backward_2_mma.cu
    ring_attention/cuda/kernels/common/elementwise.cu)
set(hopper_kernel_sources
    ring_attention/cuda/kernels/forward_3_wgmma.cu
    ring_attention/cuda/kernels/forward_4_warp_specialized.cu
    ring_attention/cuda/kernels/forward_5_pingpong.cu
    ring_attention/cuda/kernels/forward_6_persistent.cu
    ring_attention/cuda/kernels/forward_7_wide.cu
    ring_attention/cuda/kernels/backward_3_wgmma.cu
    ring_attention/cuda/kernels/backward_4_ordered.cu
    ring_attention/cuda/kernels/backward_5_bulk.cu)

# The command line, shared by the program and the lessons; and the program.
set(cli_sources
    cli/command_line.cpp
    cli/device_options.cpp
    cli/table.cpp)
set(cli_cuda_sources #
    cli/own_gpu.cpp)
set(program_parts_sources # what the tests use, too
    program/bench/decode.cpp
    program/bench/options.cpp
    program/bench/report.cpp
    program/decode/options.cpp
    program/decode/report.cpp
    program/example/command.cpp
    program/output_directory.cpp
    program/partition_options.cpp
    program/placement_choice.cpp
    program/plan/config.cpp
    program/plan/options.cpp
    program/plan/placements.cpp
    program/plan/report.cpp
    program/run/check.cpp
    program/run/check_keys.cpp
    program/run/input.cpp
    program/run/mask_flags.cpp
    program/run/options.cpp
    program/run/report.cpp
    program/train/checkpoint.cpp
    program/train/checkpoint_description.cpp
    program/train/directory_lock.cpp
    program/train/evaluation.cpp
    program/train/options.cpp
    program/train/report.cpp
    program/watchdog.cpp)
set(program_sources
    program/bench/command.cpp
    program/decode/command.cpp
    program/diagnose.cpp
    program/main.cpp
    program/plan/command.cpp
    program/progress_line.cpp
    program/run/command.cpp
    program/run/results.cpp
    program/train/command.cpp)
set(program_cuda_sources #
    program/bench/on_gpus.cpp
    program/gpu.cpp
    program/run/on_gpus.cpp)
set(program_without_cuda_sources #
    program/without_cuda.cpp)

# The Python module, above the library.
set(python_sources
    io/trace_file.cpp
    io/whole_file.cpp
    program/watchdog.cpp
    python/job.cpp
    python/letters.cpp
    python/module.cpp
    python/mpi_libraries.cpp
    python/peers.cpp
    python/placement.cpp
    python/ranks.cpp)
set(python_gpu_sources #
    python/gpu.cpp python/gpu_array.cpp)
set(python_without_gpu_sources #
    python/without_gpu.cpp)

foreach(
  folder IN
  ITEMS core mpi io attention isa cpu ring parallel model plan api cuda cuda_launch nccl kernel hopper_kernel cli cli_cuda
        program_parts program program_cuda program_without_cuda python
        python_gpu python_without_gpu)
  list(TRANSFORM ${folder}_sources PREPEND "${PROJECT_SOURCE_DIR}/src/")
endforeach()
