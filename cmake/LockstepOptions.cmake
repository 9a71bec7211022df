# SPDX-License-Identifier: BSD-3-Clause
# Everything a builder may set, in one place.
include_guard()

option(LOCKSTEP_BUILD_KIT "Build the kit: data, models, metrics, checkpoints and the trainer; OFF builds Lockstep::distributed only" ON)
option(LOCKSTEP_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_GPU_CHECKS "Build the programs of scripts/gpu_check.sh, where LibTorch has CUDA" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_PYTHON "Build the Python package lockstep_torch (needs the torch wheel and Python's headers)" OFF)
option(LOCKSTEP_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_WITH_GLOO "Build the Gloo backend (needs gloo headers and a LibTorch with Gloo)" ON)
set(LOCKSTEP_WITH_MPI AUTO CACHE STRING "Build the MPI backend: ON, OFF, or AUTO (where MPI is found)")
set_property(CACHE LOCKSTEP_WITH_MPI PROPERTY STRINGS AUTO ON OFF)
option(LOCKSTEP_WITH_CURL "Build downloads of data sets over HTTP (needs libcurl)" ON)
option(LOCKSTEP_WITH_WEBP "Read WebP images (needs libwebp)" ON)
option(LOCKSTEP_WITH_HDF5 "Read the HDF5 files of ModelNet40 (needs libhdf5)" ON)
set(LOCKSTEP_WITH_CUDA AUTO CACHE STRING
  "Build the NCCL backend: ON, OFF (the programs do not load LibTorch's CUDA part, either), or AUTO (where LibTorch has CUDA and NCCL, and their headers are found)")
set_property(CACHE LOCKSTEP_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
option(LOCKSTEP_WARNINGS_AS_ERRORS "Treat compiler warnings as errors: the presets do, since new compilers have new warnings" OFF)
option(LOCKSTEP_UNITY_BUILD "Compile several files of a layer at once: half the time from scratch, more after a change" OFF)
option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
option(LOCKSTEP_CCACHE "Compile through ccache where it is installed" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_FUZZ "Build the fuzzers (clang only)" OFF)
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers to build with, as -fsanitize= takes them: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# One flag set everywhere, so that the precompiled header serves libraries and programs alike.
add_compile_options(-fPIC)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A collection of garbage walks through all of a precompiled header, for seconds, and finds little: not below 2 GB.
  add_compile_options(--param=ggc-min-heapsize=1048576)
endif()
