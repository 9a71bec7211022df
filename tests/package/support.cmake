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
