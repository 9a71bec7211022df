# SPDX-License-Identifier: BSD-3-Clause
# What the few files need that include CUDA's headers: the headers of CUDA and NCCL, and the runtime library. A wheel
# of LibTorch installs them with the packages beside it; a LibTorch of another kind needs a CUDA toolkit.
# Also installed beside LockstepConfig.cmake.
include_guard()

# lockstep_cuda_folders(<out> <prefix of LibTorch> <include or lib>): where CUDA may be, the wheel's packages first:
# they are of the version that LibTorch was built with.
function(lockstep_cuda_folders out prefix kind)
  file(GLOB beside "${prefix}/../nvidia/*/${kind}")
  file(GLOB packed "${PROJECT_SOURCE_DIR}/.gpu-packages/nvidia/*/${kind}")
  set(folders ${beside} ${packed})
  foreach(root "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
    if(root)
      list(APPEND folders "${root}/${kind}" "${root}/${kind}64")
    endif()
  endforeach()
  set(${out} "${folders}" PARENT_SCOPE)
endfunction()

# lockstep_look_for_cuda(<prefix of LibTorch>): looks for the headers of CUDA and NCCL, and the runtime library.
function(lockstep_look_for_cuda prefix)
  lockstep_cuda_folders(includes "${prefix}" include)
  lockstep_cuda_folders(libraries "${prefix}" lib)
  # Wheels of CUDA 13 leave these parts to packages that LibTorch does without: nvidia-cuda-crt, nvidia-cuda-cccl.
  find_path(LOCKSTEP_CUDA_INCLUDE_DIR crt/host_defines.h HINTS ${includes} DOC "Folder of CUDA's headers")
  find_path(LOCKSTEP_CCCL_INCLUDE_DIR nv/target HINTS ${includes} PATH_SUFFIXES cccl DOC "Folder of CCCL's headers")
  find_path(LOCKSTEP_NCCL_INCLUDE_DIR nccl.h HINTS ${includes} DOC "Folder of NCCL's header")
  # A wheel's library has no name without a version.
  set(CMAKE_FIND_LIBRARY_SUFFIXES .so .so.13 .so.12)
  find_library(LOCKSTEP_CUDART cudart HINTS ${libraries} DOC "CUDA's runtime library")
endfunction()

# lockstep_import_cuda(<prefix of LibTorch> <variable>...): makes the target lockstep_cuda, or sets <cuda_PROBLEM> for
# the caller: the first of these results of lockstep_look_for_cuda() that is missing. What is installed needs only
# LOCKSTEP_CUDART: our public headers include none of CUDA's.
function(lockstep_import_cuda prefix)
  lockstep_look_for_cuda("${prefix}")
  foreach(needed IN LISTS ARGN)
    if(NOT ${needed})
      set(cuda_PROBLEM "${needed} was not found" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  add_library(lockstep_cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(lockstep_cuda INTERFACE
    lockstep_torch "${prefix}/lib/libtorch_cuda.so" "${prefix}/lib/libc10_cuda.so" "${LOCKSTEP_CUDART}")
  # The wheels spread the headers over several folders, which come first: a toolkit may be of another version.
  file(GLOB folders "${prefix}/../nvidia/*/include")
  foreach(found LOCKSTEP_CUDA_INCLUDE_DIR LOCKSTEP_CCCL_INCLUDE_DIR LOCKSTEP_NCCL_INCLUDE_DIR)
    if(${found})
      list(APPEND folders "${${found}}")
    endif()
  endforeach()
  target_include_directories(lockstep_cuda SYSTEM INTERFACE ${folders})
endfunction()

# lockstep_find_cuda(): where LibTorch has CUDA and NCCL, makes lockstep_cuda and sets LOCKSTEP_HAS_CUDA for the caller.
# What is missing ends configuring with one sentence if LOCKSTEP_WITH_CUDA is ON, else the nccl backend is left out.
function(lockstep_find_cuda)
  set(LOCKSTEP_HAS_CUDA OFF PARENT_SCOPE)
  set(optional OFF)
  if(LOCKSTEP_WITH_CUDA STREQUAL "AUTO")
    set(optional ON)
  elseif(NOT LOCKSTEP_WITH_CUDA)
    return()
  endif()
  if(NOT LOCKSTEP_LIBTORCH_HAS_CUDA OR NOT LOCKSTEP_LIBTORCH_HAS_NCCL)
    if(optional)
      return()
    endif()
    message(FATAL_ERROR "  LOCKSTEP_WITH_CUDA is ON, but the LibTorch in ${LOCKSTEP_LIBTORCH_PREFIX} has no CUDA or NCCL that can be used: point Torch_DIR at one that has both (LOCKSTEP_TORCH=+cuda scripts/setup.sh installs one), or configure with -DLOCKSTEP_WITH_CUDA=AUTO.")
  endif()
  lockstep_import_cuda("${LOCKSTEP_LIBTORCH_PREFIX}"
    LOCKSTEP_CUDA_INCLUDE_DIR LOCKSTEP_CCCL_INCLUDE_DIR LOCKSTEP_NCCL_INCLUDE_DIR LOCKSTEP_CUDART)
  if(NOT cuda_PROBLEM)
    message(STATUS "CUDA: headers in ${LOCKSTEP_CUDA_INCLUDE_DIR}, NCCL's in ${LOCKSTEP_NCCL_INCLUDE_DIR}, ${LOCKSTEP_CUDART}")
    set(LOCKSTEP_HAS_CUDA ON PARENT_SCOPE)
    return()
  endif()
  set(remedy "install nvidia-cuda-crt and nvidia-cuda-cccl with pip beside LibTorch, of the version of nvidia-cuda-runtime there (LOCKSTEP_TORCH=+cuda scripts/setup.sh does it), or set CUDA_HOME to a toolkit")
  if(optional)
    message(STATUS "CUDA: building without the nccl backend, because ${cuda_PROBLEM}; to get it, ${remedy}")
  else()
    message(FATAL_ERROR "  LOCKSTEP_WITH_CUDA is ON, but ${cuda_PROBLEM}: ${remedy}, or configure with -DLOCKSTEP_WITH_CUDA=AUTO to build without the nccl backend.")
  endif()
endfunction()
