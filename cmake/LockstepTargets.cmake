# SPDX-License-Identifier: BSD-3-Clause
include_guard()

# The folders below which the layers of each wing lie; sources include "<layer>/<file>".
set(LOCKSTEP_SOURCE_FOLDERS)
foreach(wing foundation launcher tensors communication parallel kit)
  list(APPEND LOCKSTEP_SOURCE_FOLDERS "${PROJECT_SOURCE_DIR}/src/${wing}")
endforeach()

# lockstep_add_precompiled_header(<name> <header>...): compiled once and shared by every target that reuses it. It is not free:
# g++ stores which templates the headers ask for, and instantiates them again in every object. A file that is empty costs 2.5 s
# with lockstep_layer_pch, 6 s with lockstep_test_pch and 8.5 s with lockstep_program_pch, so few objects are better than many.
function(lockstep_add_precompiled_header name)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch/empty.cpp" CONTENT "")
  add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/pch/empty.cpp")
  target_link_libraries(${name} PRIVATE lockstep_torch)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  lockstep_set_warnings(${name})
endfunction()

# lockstep_add_test_precompiled_header(): for programs of the tests, which are compiled without optimization. A
# header of its own: g++ 12 fails on one that was precompiled with another level.
function(lockstep_add_test_precompiled_header)
  lockstep_add_precompiled_header(lockstep_test_pch
    <torch/torch.h> <gmock/gmock.h> <gtest/gtest.h> <fmt/ranges.h>)
  target_link_libraries(lockstep_test_pch PRIVATE GTest::gmock GTest::gtest)
  lockstep_do_not_optimize(lockstep_test_pch)
endfunction()

# lockstep_do_not_optimize(<target>): -O0 instead of -O3, which halves the time that a test takes to compile.
function(lockstep_do_not_optimize target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O0>")
  lockstep_sanitize_addresses_only(${target})
endfunction()

# lockstep_optimize_little(<target>): -O1 instead of -O3, which takes up to half the time to compile: for command lines and for
# programs, in which what they call takes the time.
function(lockstep_optimize_little target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Which g++ 12 sees in any std::optional at -O1.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  lockstep_sanitize_addresses_only(${target})
endfunction()

# Programs include <torch/torch.h>; the library includes what it uses, and starts from the headers that all of it uses.
# Without tests and benchmarks there are so few programs that precompiling takes longer than it saves.
function(lockstep_add_precompiled_headers)
  if(LOCKSTEP_BUILD_BENCHMARKS OR LOCKSTEP_BUILD_TESTS OR LOCKSTEP_HAS_CUDA)
    find_package(CLI11 REQUIRED)
    lockstep_add_precompiled_header(lockstep_program_pch
      <torch/torch.h> <CLI/CLI.hpp> <nlohmann/json.hpp> <fmt/ranges.h>)
    target_link_libraries(lockstep_program_pch PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
    lockstep_optimize_little(lockstep_program_pch)
  endif()
  lockstep_add_precompiled_header(lockstep_layer_pch
    <ATen/core/Tensor.h> <torch/csrc/distributed/c10d/Backend.hpp> <fmt/ranges.h>)
endfunction()

# lockstep_link_privately(<target> <library>...): links what only our .cpp files see. Header-only libraries stay out
# of the exported link interface, so that an installed Lockstep does not ask its users for them.
function(lockstep_link_privately target)
  foreach(library IN LISTS ARGN)
    if(library MATCHES "^(nlohmann_json::|CLI11::)")
      target_link_libraries(${target} PRIVATE "$<BUILD_INTERFACE:${library}>")
    else()
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
endfunction()

# lockstep_set_unity(<target> [BATCH <files>] [APART <file>...] [ALONE <file>...]): compiles its files in groups of so many, by
# default 10, where LOCKSTEP_UNITY_BUILD is on. Files whose names of their own clash with those of others go into groups apart, or
# are compiled alone: each group costs 3 to 9 s, see lockstep_add_precompiled_header().
function(lockstep_set_unity target)
  cmake_parse_arguments(arg "" "BATCH" "APART;ALONE" ${ARGN})
  if(NOT LOCKSTEP_UNITY_BUILD)
    return()
  endif()
  set(batch 10)
  if(arg_BATCH)
    set(batch ${arg_BATCH})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  if(arg_APART OR arg_ALONE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  endif()
  get_target_property(files ${target} SOURCES)
  set(together 0)
  set(apart 0)
  foreach(file IN LISTS files)
    if(NOT file IN_LIST arg_ALONE)
      set(kind together)
      if(file IN_LIST arg_APART)
        set(kind apart)
      endif()
      math(EXPR number "${${kind}} / ${batch}")
      math(EXPR ${kind} "${${kind}} + 1")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${kind}_${number})
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Which g++ takes for a mistake in headers: here the file around is none that others include.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# lockstep_install_later(<target> <name>): lockstep_add_install_rules() installs it as Lockstep::<name>, for
# find_package() with the component that LOCKSTEP_COMPONENT names.
function(lockstep_install_later target name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_TARGETS_${LOCKSTEP_COMPONENT} ${target})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_INSTALLED_TARGETS ${target})
endfunction()

# lockstep_add_layer(<layer> [TORCH] SOURCES <file>... [DEPENDS <layer or target>...] [PRIVATE <target>...])
# One library a layer of the design: target lockstep_<layer>, exported as Lockstep::<layer>.
function(lockstep_add_layer layer)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  set(target lockstep_${layer})
  add_library(${target} ${arg_SOURCES})
  add_library(Lockstep::${layer} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target}
    PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
    PRIVATE ${LOCKSTEP_SOURCE_FOLDERS})
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS})
  lockstep_link_privately(${target} ${arg_PRIVATE})
  if(arg_TORCH)
    target_link_libraries(${target} PUBLIC lockstep_torch)
    target_precompile_headers(${target} REUSE_FROM lockstep_layer_pch)
  endif()
  lockstep_set_warnings(${target})
  lockstep_set_unity(${target})
  # docs/compatibility.md: before 1.0 a minor release may change the binary interface.
  set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "" VERSION "${PROJECT_VERSION}"
    SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
  lockstep_install_later(${target} ${layer})
endfunction()

# lockstep_add_program(<name> [TORCH] SOURCES <file>... [LINK <target>...] [PRECOMPILED <target>])
# PRECOMPILED names the precompiled header of a TORCH program; lockstep_program_pch by default.
function(lockstep_add_program name)
  cmake_parse_arguments(arg "TORCH" "PRECOMPILED" "SOURCES;LINK" ${ARGN})
  if(NOT arg_PRECOMPILED)
    set(arg_PRECOMPILED lockstep_program_pch)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE lockstep_torch)
    if(TARGET ${arg_PRECOMPILED})
      target_precompile_headers(${name} REUSE_FROM ${arg_PRECOMPILED})
    endif()
  endif()
  lockstep_optimize_little(${name})
  lockstep_set_warnings(${name})
  lockstep_set_sanitizer_defaults(${name})
endfunction()
