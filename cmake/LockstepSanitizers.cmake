# SPDX-License-Identifier: BSD-3-Clause
# Builds everything with the sanitizers of LOCKSTEP_SANITIZE.
include_guard()

if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
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
