# The Python package ring_attention, in <build>/python: `PYTHONPATH=build/release/python python3`.
#
# It is built for one interpreter: -DPython_EXECUTABLE=..., else that of the active virtual environment, else the first
# python3 that has NumPy.

set(RING_ATTENTION_PYTHON AUTO
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
if(NOT Python_FOUND)
  set(missing "the headers of Python 3.9 or later for '${Python_EXECUTABLE}'")
else()
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_hint
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET) # where pip has installed it
  find_package(pybind11 2.10 QUIET CONFIG HINTS "${pybind11_hint}")
  if(NOT pybind11_FOUND)
    set(missing "pybind11 2.10 or later")
  endif()
endif()
if(missing AND RING_ATTENTION_PYTHON STREQUAL AUTO)
  message(STATUS "The Python module is left out: there is no ${missing} (`sh setup.sh python` installs it)")
  return()
elseif(missing)
  message(FATAL_ERROR "The Python module needs ${missing}. Remedy: `sh setup.sh python`.")
endif()
message(STATUS "The Python module is built for ${Python_EXECUTABLE}, Python ${Python_VERSION}")

pybind11_add_module(ring_attention_python MODULE NO_EXTRAS ${python_sources})
target_link_libraries(ring_attention_python PRIVATE ring_attention::ring_attention ${CMAKE_DL_LIBS})
target_compile_definitions(ring_attention_python PRIVATE RING_ATTENTION_VERSION="${PROJECT_VERSION}")
# pybind11 is what takes long to compile: its two files are compiled as one, without the optimisations that only engines
# need.
set(python_pybind11_sources "${PROJECT_SOURCE_DIR}/src/python/module.cpp" "${PROJECT_SOURCE_DIR}/src/python/ranks.cpp")
set_source_files_properties(${python_pybind11_sources} PROPERTIES UNITY_GROUP pybind11)
set_target_properties(ring_attention_python PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
target_compile_options(ring_attention_python PRIVATE $<$<CONFIG:Release>:-O1>)
set(python_package "${PROJECT_BINARY_DIR}/python/ring_attention")
set_target_properties(ring_attention_python PROPERTIES OUTPUT_NAME _core LIBRARY_OUTPUT_DIRECTORY "${python_package}")
foreach(file IN ITEMS __init__.py _arrays.py _ranks.py torch.py _core.pyi py.typed)
  configure_file("python/ring_attention/${file}" "${python_package}/${file}" COPYONLY)
endforeach()

# For `pip install .`, which installs this component alone (pyproject.toml).
install(TARGETS ring_attention_python LIBRARY DESTINATION ring_attention COMPONENT python EXCLUDE_FROM_ALL)
