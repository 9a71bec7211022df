# SPDX-License-Identifier: BSD-3-Clause
# Configuring with a LibTorch that has CUDA: what is missing leaves the nccl backend out in one line, and ends configuring only
# if LOCKSTEP_WITH_CUDA is ON.
cmake_policy(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/support.cmake")

set(root "${work}/cuda")
set(prefix "${root}/site-packages/torch")
set(wheel "${root}/site-packages/nvidia/cu13")

function(make_cuda_libtorch)
  file(REMOVE_RECURSE "${root}")
  make_libtorch("${prefix}" 99.1.0 "_ZNSt7__cxx1112basic_string")
  file(WRITE "${prefix}/share/cmake/Caffe2/Caffe2Targets.cmake"
    "set_target_properties(torch_cpu PROPERTIES\n  INTERFACE_COMPILE_DEFINITIONS \"USE_C10D_NCCL\"\n")
  file(WRITE "${prefix}/lib/libtorch_cuda.so" "")
endfunction()

# expect_configured(<what> <ON or OFF or AUTO> <"ends" or "continues"> <regex>...): only what is below root is found.
function(expect_configured what with_cuda ends)
  file(REMOVE_RECURSE "${work}/cuda_finds")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/finds" -B "${work}/cuda_finds" "-Dsource=${source}"
    "-DTorch_DIR=${prefix}" "-DLOCKSTEP_WITH_CUDA=${with_cuda}" "-DCMAKE_FIND_ROOT_PATH=${root}"
    -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE code)
  set(expected "ends")
  if(code EQUAL 0)
    set(expected "continues")
  endif()
  if(NOT ends STREQUAL expected)
    message(FATAL_ERROR "${what}: configuring ended with ${code}:\n${text}")
  endif()
  foreach(regex IN LISTS ARGN)
    expect_match("${what}" "${text}" "${regex}")
  endforeach()
endfunction()

make_cuda_libtorch()
set(missing "LOCKSTEP_CUDA_INCLUDE_DIR was not found")
set(remedy "install nvidia-cuda-crt and nvidia-cuda-cccl with pip beside LibTorch")
expect_configured("no header" AUTO continues "-- CUDA: building without the nccl backend, because ${missing}; to get it, ${remedy}[^\n]*\n?" "nccl: OFF")
expect_configured("no header, ON" ON "ends" "LOCKSTEP_WITH_CUDA is ON, but ${missing}: ${remedy}")
expect_configured("no header, OFF" OFF continues "nccl: OFF")

file(WRITE "${wheel}/include/crt/host_defines.h" "")
file(WRITE "${wheel}/include/cccl/nv/target" "")
file(WRITE "${wheel}/include/nccl.h" "")
expect_configured("no runtime library" AUTO continues "because LOCKSTEP_CUDART was not found" "nccl: OFF")
file(WRITE "${wheel}/lib/libcudart.so.13" "")
expect_configured("everything" AUTO continues "nccl: ON; linked: [^ ]*/libtorch\\.so,")
expect_configured("everything, ON" ON continues "nccl: ON")
expect_configured("everything, OFF" OFF continues "nccl: OFF; linked: [^ ]*/libtorch_cpu\\.so,")

# A CUDA part that cannot be loaded, as that of PyPI's wheel without its libraries.
execute_process(COMMAND "${compiler}" -shared -o "${work}/libabsent.so" -x c++ /dev/null COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${compiler}" -shared -o "${prefix}/lib/libtorch_cuda.so" -x c++ /dev/null -Wl,--no-as-needed "-L${work}" -labsent
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE "${work}/libabsent.so")
expect_configured("a CUDA part without its libraries" AUTO continues
  "using only its CPU part, since its CUDA part needs libabsent\\.so, which are not installed" "nccl: OFF; linked: [^ ]*/libtorch_cpu\\.so,")
expect_configured("a CUDA part without its libraries, ON" ON "ends" "LOCKSTEP_WITH_CUDA is ON, but the LibTorch in .* has no CUDA or NCCL that can be used")
