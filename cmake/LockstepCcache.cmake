# SPDX-License-Identifier: BSD-3-Clause
# ccache, where it is installed and no other launcher was asked for, with what it needs to cache files that use a
# precompiled header. Paths are hashed as they are (no base_dir): an object has the paths of its sources, by which errors tell the
# lines of the program from those of the library, so that one of another clone would be wrong.
include_guard()

if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LOCKSTEP_CCACHE_PROGRAM ccache DOC "The ccache program")
  if(LOCKSTEP_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${LOCKSTEP_CCACHE_PROGRAM}")
  endif()
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  else()
    add_compile_options(-fpch-preprocess)
  endif()
endif()
