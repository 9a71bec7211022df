# SPDX-License-Identifier: BSD-3-Clause
# Functions that the scripts beside this file share.

# make_libtorch(<folder> <version> <contents of libc10.so>): what looks like a LibTorch to those who only look.
function(make_libtorch folder version c10)
  file(REMOVE_RECURSE "${folder}")
  file(WRITE "${folder}/share/cmake/Torch/TorchConfig.cmake" "")
  file(WRITE "${folder}/share/cmake/Torch/TorchConfigVersion.cmake" "set(PACKAGE_VERSION \"${version}\")\n")
  file(WRITE "${folder}/share/cmake/Caffe2/Caffe2Targets.cmake" "")
  file(WRITE "${folder}/lib/libc10.so" "${c10}")
  file(WRITE "${folder}/lib/libtorch_cpu.so" "")
endfunction()

# expect_match(<what> <text> <regex>): ends the test unless the text, its line breaks taken for spaces, matches.
function(expect_match what text regex)
  string(REGEX REPLACE "[ \n]+" " " flat "${text}")
  if(NOT flat MATCHES "${regex}")
    message(FATAL_ERROR "${what}: expected a match of\n  ${regex}\nin\n  ${flat}")
  endif()
endfunction()

# configure_consumer(<source folder> <build folder> <from> <argument>...): the consumer, or a copy of it, without optimization.
function(configure_consumer source_folder folder from)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${source_folder}" -B "${folder}" -G Ninja "-Dfrom=${from}"
            "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_FLAGS=${flags} -Winvalid-pch -Werror=invalid-pch"
            -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG -DCMAKE_EXPORT_COMPILE_COMMANDS=ON ${ARGN}
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# build_consumer(<folder> <target>)
function(build_consumer folder target)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${folder}" --target ${target} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# expect_no_library_of_kit(<what> <text>)
function(expect_no_library_of_kit what text)
  if(text MATCHES "lib(jpeg|png|webp|curl|hdf5)[^ ]*")
    message(FATAL_ERROR "${what} has ${CMAKE_MATCH_0}:\n${text}")
  endif()
endfunction()
