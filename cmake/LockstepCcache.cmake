# SPDX-License-Identifier: BSD-3-Clause
# ccache, where it is installed and no other launcher was asked for, with what it needs to cache files that use a
# precompiled header, and to serve clones in other folders. Paths below the source folder are hashed as relative ones;
# debug information in the cache may therefore name the folder of another clone.
include_guard()

if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LOCKSTEP_CCACHE_PROGRAM ccache DOC "The ccache program")
  if(LOCKSTEP_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1 "${LOCKSTEP_CCACHE_PROGRAM}")
  endif()
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  else()
    add_compile_options(-fpch-preprocess)
  endif()
endif()
