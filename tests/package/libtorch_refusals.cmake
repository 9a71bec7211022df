# SPDX-License-Identifier: BSD-3-Clause
# Finding LibTorch takes what it is pointed at, in the documented order, and says in one sentence what is wrong.
include("${CMAKE_CURRENT_LIST_DIR}/support.cmake")
include("${source}/cmake/LockstepLibTorch.cmake")

set(fakes "${work}/libtorch")
make_libtorch("${fakes}/good" 99.1.0 "_ZNSt7__cxx1112basic_string")
make_libtorch("${fakes}/other" 99.2.0 "_ZNSt7__cxx1112basic_string")
make_libtorch("${fakes}/old" 1.13.1 "_ZNSt7__cxx1112basic_string")
make_libtorch("${fakes}/old_abi" 99.1.0 "_ZNSs6appendERKSs")
make_libtorch("${fakes}/static" 99.1.0 "")
file(REMOVE "${fakes}/static/lib/libc10.so")

# A Python whose torch is the LibTorch of this folder ("" for none).
function(set_active_python folder)
  file(WRITE "${work}/active/bin/python3" "#!/bin/sh\necho '${folder}'\n")
  file(CHMOD "${work}/active/bin/python3" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(ENV{VIRTUAL_ENV} "${work}/active")
endfunction()

# expect_choice(<what> <prefix or ""> <regex for the problem> [<fallback>])
function(expect_choice what prefix problem)
  lockstep_choose_libtorch(FALLBACKS ${ARGN})
  expect_match("${what}: problem" "${libtorch_PROBLEM}" "${problem}")
  if(prefix AND NOT libtorch_PREFIX STREQUAL prefix)
    message(FATAL_ERROR "${what}: expected ${prefix}, got ${libtorch_PREFIX}")
  endif()
endfunction()

unset(ENV{CMAKE_PREFIX_PATH})
set(remedy ": run scripts/setup.sh to get a fitting one into .venv, or point Torch_DIR or CMAKE_PREFIX_PATH at one\\.$")

set_active_python("")
expect_choice("nothing anywhere" "" "^Found no LibTorch in Torch_DIR, CMAKE_PREFIX_PATH, the active Python or .venv, and Lockstep needs .* or later: run scripts/setup.sh")
expect_choice("the fallback" "${fakes}/other" "^$" "${fakes}/other")

set_active_python("${fakes}/good")
expect_choice("the active Python before the fallback" "${fakes}/good" "^$" "${fakes}/other")
set_active_python("${fakes}/old")
expect_choice("an old active Python gives way" "${fakes}/other" "^$" "${fakes}/other")
expect_choice("an old active Python alone" "" "^Found LibTorch 1.13.1 in .*/old, but Lockstep needs ${LOCKSTEP_LIBTORCH_MINIMUM} or later${remedy}")

set_active_python("${fakes}/other")
set(CMAKE_PREFIX_PATH "/nowhere;${fakes}/good")
expect_choice("CMAKE_PREFIX_PATH before the active Python" "${fakes}/good" "^$")
set(CMAKE_PREFIX_PATH "/nowhere")
expect_choice("CMAKE_PREFIX_PATH without LibTorch" "${fakes}/other" "^$")
set(CMAKE_PREFIX_PATH "${fakes}/old_abi")
expect_choice("pre-cxx11 ABI" "" "^Found LibTorch 99.1.0 in .*/old_abi, but it was built with the pre-C\\+\\+11 ABI and Lockstep needs the cxx11 ABI${remedy}" "${fakes}/good")
set(CMAKE_PREFIX_PATH "${fakes}/static")
expect_choice("no shared library" "" "^Found LibTorch 99.1.0 in .*/static, but its lib folder lacks .*${remedy}" "${fakes}/good")

set(Torch_DIR "${fakes}/other/share/cmake/Torch")
expect_choice("Torch_DIR before CMAKE_PREFIX_PATH" "${fakes}/other" "^$")
set(Torch_DIR "${fakes}/nowhere")
expect_choice("a wrong Torch_DIR" "" "^Torch_DIR is .*/nowhere, but there is no TorchConfig.cmake" "${fakes}/good")
