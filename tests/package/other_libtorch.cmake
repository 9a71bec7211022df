# SPDX-License-Identifier: BSD-3-Clause
# find_package(Lockstep) refuses a LibTorch whose version differs from that of the build.
include("${CMAKE_CURRENT_LIST_DIR}/support.cmake")
make_libtorch("${work}/libtorch_next" 99.1.0 "_ZNSt7__cxx1112basic_string")
file(REMOVE_RECURSE "${work}/other_libtorch")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${work}/other_libtorch" -G Ninja
          -Dfrom=package "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_CXX_COMPILER=${compiler}" "-DTorch_DIR=${work}/libtorch_next"
  OUTPUT_QUIET ERROR_VARIABLE error RESULT_VARIABLE code)
if(code EQUAL 0)
  message(FATAL_ERROR "configuring went well with another LibTorch")
endif()
expect_match("refusal" "${error}"
  "Found LibTorch 99.1.0 in [^ ]*/libtorch_next \\(Torch_DIR\\), but this Lockstep was built with [0-9.]+ and its C\\+\\+ interface differs from version to version: point Torch_DIR at a LibTorch")
