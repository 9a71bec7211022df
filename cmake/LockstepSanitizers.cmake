# SPDX-License-Identifier: BSD-3-Clause
# Builds everything with the sanitizers of LOCKSTEP_SANITIZE.
include_guard()

if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Of which g++ documents that sanitizers make it report what is none, here in std::function and std::string.
    add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow)
  endif()
  # g++ warns of every fence, since its thread sanitizer takes no account of them: it may report what a fence orders.
  if(LOCKSTEP_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)
  endif()
endif()

# lockstep_sanitize_addresses_only(<target>): for tests and programs: -O0, and no check of undefined behaviour, which doubles the time
# that the templates of LibTorch's headers take to compile. Libraries have all checks.
function(lockstep_sanitize_addresses_only target)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:-O0>")
  endif()
  if(LOCKSTEP_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()

# lockstep_set_sanitizer_defaults(<program>): the run-time options and suppressions that a program linked with
# LibTorch needs are compiled into it, so that it behaves the same under ctest, under the launcher and by hand.
function(lockstep_set_sanitizer_defaults program)
  if(LOCKSTEP_SANITIZE)
    target_sources(${program} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/sanitizers/defaults.cpp")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/cmake/sanitizers/defaults.cpp"
      TARGET_DIRECTORY ${program} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
