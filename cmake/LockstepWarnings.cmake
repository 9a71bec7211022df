# SPDX-License-Identifier: BSD-3-Clause
include_guard()

# Turns on the warnings that this project is kept clean of.
function(lockstep_set_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE -Wthread-safety -Werror=thread-safety)  # Note [Checked locks] in base/mutex.h
  endif()
  if(LOCKSTEP_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
