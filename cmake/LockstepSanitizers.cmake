# SPDX-License-Identifier: BSD-3-Clause
# Builds everything with the sanitizers of LOCKSTEP_SANITIZE.
include_guard()

if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # which g++ 12 sees in any std::function or std::optional of such a build
  endif()
  # g++ warns of every fence, since its thread sanitizer takes no account of them: it may report what a fence orders.
  if(LOCKSTEP_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)
  endif()
endif()

# lockstep_set_sanitizer_defaults(<program>): the run-time options and suppressions that a program linked with
# LibTorch needs are compiled into it, so that it behaves the same under ctest, under the launcher and by hand.
function(lockstep_set_sanitizer_defaults program)
  if(LOCKSTEP_SANITIZE)
    target_sources(${program} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/sanitizers/defaults.cpp")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/cmake/sanitizers/defaults.cpp"
      TARGET_DIRECTORY ${program} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
