# SPDX-License-Identifier: BSD-3-Clause
# Read by ctest when it starts: makes every suite of one googletest program a ctest, or all of it. While building, a program that
# crashes would break the build of the others. The including file, which lockstep_discover_suites() writes, sets name,
# program, list (a file beside it), timeout, labels, processors and whole.

if(NOT EXISTS "${program}")
  # As gtest_discover_tests() does: a test that ctest reports as not found.
  add_test("${name}_NOT_BUILT" "${name}_NOT_BUILT")
  return()
endif()
if("${program}" IS_NEWER_THAN "${list}")
  execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE code TIMEOUT 60)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests ended with ${code}:\n${listed}")
  endif()
  file(WRITE "${list}" "${listed}")
endif()
# A suite is a line that ends with a dot, or has "# TypeParam" after it; its cases are the indented lines that follow.
file(STRINGS "${list}" lines REGEX "^([A-Za-z_0-9/]+\\.( +#.*)?$|  )")
set(suites "")
if(whole)
  set(suite all)
  set(suites all)
  set(cases_of_all 0)
endif()
foreach(line IN LISTS lines)
  if(line MATCHES "^([A-Za-z_0-9/]+)\\.")
    if(whole)
      continue()
    endif()
    set(suite "${CMAKE_MATCH_1}")
    list(APPEND suites "${suite}")
    set(cases_of_${suite} 0)
  else()
    math(EXPR cases_of_${suite} "${cases_of_${suite}} + 1")
  endif()
endforeach()
foreach(suite IN LISTS suites)
  # A single case may take the whole limit. Hanging cases end by watchdogs of their own, so the others add little.
  math(EXPR limit "${timeout} + ${timeout} * ${cases_of_${suite}} / 10")
  set(filter "--gtest_filter=${suite}.*")
  if(whole)
    set(filter "")
  endif()
  add_test("${name}.${suite}" "${program}" ${filter})
  # ctest starts those with the highest cost first, so that none of them runs alone at the end.
  set_tests_properties("${name}.${suite}" PROPERTIES LABELS "${labels}" TIMEOUT ${limit} COST ${limit}
    PROCESSORS ${processors})
endforeach()
