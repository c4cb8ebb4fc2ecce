# The Python package ring_attention, in <build>/python: `PYTHONPATH=build/release/python python3`.
#
# The package is built for one interpreter: -DPython_EXECUTABLE=..., else the active virtual environment's, else the
# first python3 that has NumPy.

set(RING_ATTENTION_PYTHON "${RING_ATTENTION_AUTO}"
    CACHE STRING "Build the Python module: ON, OFF, or AUTO (when pybind11 and Python's headers are found)")
set_property(CACHE RING_ATTENTION_PYTHON PROPERTY STRINGS AUTO ON OFF)
if(NOT RING_ATTENTION_PYTHON)
  return()
endif()
if(RING_ATTENTION_SANITIZE)
  message(STATUS "The Python module is left out: a sanitizer has to be loaded before Python")
  return()
endif()

if(NOT Python_EXECUTABLE)
  find_program(ring_attention_python3 python3 NO_CACHE)
  set(candidates "${ring_attention_python3}" /usr/bin/python3 /opt/homebrew/bin/python3 /usr/local/bin/python3)
  if(DEFINED ENV{VIRTUAL_ENV})
    set(candidates "$ENV{VIRTUAL_ENV}/bin/python3")
  endif()
  foreach(python IN LISTS candidates)
    execute_process(COMMAND "${python}" -c "import numpy, sys; print(sys.executable, end='')"
                    OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0)
      set(Python_EXECUTABLE "${found}" CACHE FILEPATH "The interpreter for which the Python module is built")
      break()
    endif()
  endforeach()
endif()

set(missing "")
find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
set(remedy "`sh setup.sh python`")
if(NOT Python_EXECUTABLE)
  set(missing "Python 3.9 or later")
elseif(NOT Python_FOUND)
  set(missing "the headers of Python, 3.9 or later, for ${Python_EXECUTABLE}")
else()
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_hint
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET) # where pip has installed it
  find_package(pybind11 2.10 QUIET CONFIG HINTS "${pybind11_hint}")
  if(NOT pybind11_FOUND)
    set(missing "pybind11 2.10 or later")
    if(pybind11_CONSIDERED_VERSIONS) # the system's package is older, as on Ubuntu 22.04
      string(APPEND missing " (there is ${pybind11_CONSIDERED_VERSIONS})")
      set(remedy "`${Python_EXECUTABLE} -m pip install 'pybind11>=2.10'`")
    endif()
  endif()
endif()
if(missing AND RING_ATTENTION_PYTHON STREQUAL AUTO)
  message(STATUS "The Python module is left out. Missing: ${missing}. Remedy: ${remedy}.")
  return()
elseif(missing)
  message(FATAL_ERROR "RING_ATTENTION_PYTHON is ON, and the module cannot be built. Missing: ${missing}. Remedy: ${remedy}.")
endif()
message(STATUS "The Python module is built for ${Python_EXECUTABLE}, Python ${Python_VERSION}")

# What does not depend on a GPU is a library of its own: the tests make a second module of it, with an emulated GPU.
add_library(ring_attention_python_common OBJECT ${python_sources})
target_link_libraries(ring_attention_python_common PRIVATE pybind11::module ring_attention::ring_attention)
set(mpi_library ${MPI_CXX_LIBRARIES})
list(FILTER mpi_library INCLUDE REGEX "/libmpi(ch)?\\.")
target_compile_definitions(ring_attention_python_common PRIVATE RING_ATTENTION_VERSION="${PROJECT_VERSION}"
                                                                RING_ATTENTION_MPI_LIBRARY="${mpi_library}")
# pybind11 is what takes long to compile: its files are compiled as one, without the optimisations that only
# engines need.
set(python_pybind11_sources ${python_sources})
list(FILTER python_pybind11_sources INCLUDE REGEX "/(module|peers|ranks)\\.cpp$")
set_source_files_properties(${python_pybind11_sources} PROPERTIES UNITY_GROUP pybind11)
set_target_properties(ring_attention_python_common PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
                                                              CXX_VISIBILITY_PRESET hidden)
target_compile_options(ring_attention_python_common PRIVATE $<$<CONFIG:Release>:-O1>)

# ring_attention_python_package(<target> <folder> LIBRARIES library... SOURCES file...): the package in <folder>
function(ring_attention_python_package target folder)
  cmake_parse_arguments(PARSE_ARGV 2 package "" "" "LIBRARIES;SOURCES")
  pybind11_add_module(${target} MODULE NO_EXTRAS $<TARGET_OBJECTS:ring_attention_python_common> ${package_SOURCES})
  # MPI's functions stay undefined until a call needs them (mpi_libraries.cpp).
  set_target_properties(${target} PROPERTIES LOADS_MPI ON)
  target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:MPI::MPI_CXX,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:MPI::MPI_CXX,INTERFACE_COMPILE_DEFINITIONS>)
  target_link_options(${target} PRIVATE $<$<PLATFORM_ID:Linux>:-Wl,-z,lazy>)
  target_link_libraries(${target} PRIVATE ${package_LIBRARIES} ${CMAKE_DL_LIBS})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME _core LIBRARY_OUTPUT_DIRECTORY "${folder}/ring_attention"
                                             UNITY_BUILD ON)
  ring_attention_link_diagnose("${folder}")
  foreach(file IN ITEMS __init__.py _arrays.py _attention.py _diagnose.py _exchange.py _groups.py _job.py _masks.py _meeting.py
                        _model_calls.py _model_probe.py _own_job.py _peers.py _rank_processes.py _ranks.py torch.py
                        transformers.py _core.pyi py.typed)
    configure_file("${PROJECT_SOURCE_DIR}/src/python/ring_attention/${file}" "${folder}/ring_attention/${file}" COPYONLY)
  endforeach()
endfunction()
if(RING_ATTENTION_HAS_CUDA)
  set(gpu SOURCES ${python_gpu_sources} LIBRARIES ring_attention::ring_attention_cuda)
else()
  set(gpu SOURCES ${python_without_gpu_sources} LIBRARIES ring_attention::ring_attention)
endif()
ring_attention_python_package(ring_attention_python "${PROJECT_BINARY_DIR}/python" ${gpu})
# PyTorch brings a CUDA runtime, and often a C++ library, of its own: what is linked into the module stays apart from them.
target_link_options(ring_attention_python PRIVATE $<$<PLATFORM_ID:Linux>:LINKER:--exclude-libs,ALL>)

# For `pip install .`, which installs this component alone (pyproject.toml).
install(TARGETS ring_attention_python LIBRARY DESTINATION ring_attention COMPONENT python EXCLUDE_FROM_ALL)
