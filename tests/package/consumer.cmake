# SPDX-License-Identifier: BSD-3-Clause
# Builds a program of collectives and DDP, and those of the documentation, with the installed package, and runs the first.
# Components that do not exist are refused.
include("${CMAKE_CURRENT_LIST_DIR}/support.cmake")
set(CMAKE_PREFIX_PATH "${work}/prefix")
find_package(Lockstep QUIET COMPONENTS distributed networks)
expect_match("an unknown component" "${Lockstep_NOT_FOUND_MESSAGE}"
  "^Lockstep has no component networks; this installation has distributed( and kit)?: distributed is ")
file(REMOVE_RECURSE "${work}/consumer")
file(READ "${Lockstep_DIR}/LockstepConfig.cmake" config)
string(REPLACE "(lockstep_built distributed;kit)" "(lockstep_built distributed)" config "${config}")
file(WRITE "${work}/consumer/without_kit/LockstepConfig.cmake" "${config}")
set(Lockstep_DIR "${work}/consumer/without_kit")
find_package(Lockstep QUIET COMPONENTS kit)
expect_match("a component that was not built" "${Lockstep_NOT_FOUND_MESSAGE}"
  "^This Lockstep was built without the component kit; it has distributed: build it with LOCKSTEP_BUILD_KIT=ON, or ask for COMPONENTS distributed\\.$")

file(COPY "${CMAKE_CURRENT_LIST_DIR}/consumer" DESTINATION "${work}")
foreach(page README docs/coming-from-python-ddp)
  get_filename_component(name "${page}" NAME)
  execute_process(
    COMMAND "${python}" "${source}/tests/snippets/snippets.py" program "${source}/${page}.md" "${work}/consumer/${name}.cpp"
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
configure_consumer("${work}/consumer" "${work}/consumer/package" package "-DCMAKE_PREFIX_PATH=${work}/prefix")
file(READ "${work}/consumer/package/compile_commands.json" commands)
if(commands MATCHES "${source}/(include|src)")
  message(FATAL_ERROR "the consumer is built with headers of the source tree:\n${commands}")
endif()
expect_match("the compilation of train.cpp" "${commands}" "-include [^ ]*cmake_pch.hxx [^\"]*train.cpp")
build_consumer("${work}/consumer/package" all)
foreach(program version train)
  execute_process(COMMAND "${work}/consumer/package/${program}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ldd "${work}/consumer/package/train" OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
expect_no_library_of_kit("train" "${libraries}")
