# SPDX-License-Identifier: BSD-3-Clause
include_guard()

# Finds LibTorch and makes the target lockstep_torch.
function(lockstep_find_libtorch)
  if(NOT Torch_DIR AND NOT CMAKE_PREFIX_PATH AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    execute_process(
      COMMAND "${PROJECT_SOURCE_DIR}/.venv/bin/python" -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(CMAKE_PREFIX_PATH "${prefix}")
  endif()
  find_package(Torch 2.13 REQUIRED)
  add_library(lockstep_torch INTERFACE)
  target_link_libraries(lockstep_torch INTERFACE ${TORCH_LIBRARIES})
endfunction()
