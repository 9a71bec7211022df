# SPDX-License-Identifier: BSD-3-Clause
# A program of collectives and DDP configures with the source folder, by add_subdirectory and by FetchContent. Built and run is
# what uses the layer base only; scripts/nightly.sh distributed builds all.
include("${CMAKE_CURRENT_LIST_DIR}/support.cmake")
file(REMOVE_RECURSE "${work}/source")
foreach(from FetchContent add_subdirectory)
  configure_consumer("${CMAKE_CURRENT_LIST_DIR}/consumer" "${work}/source/${from}" ${from} "-Dsource=${source}" "-DTorch_DIR=${torch}" -DLOCKSTEP_WITH_CUDA=OFF
    -DLOCKSTEP_WITH_MPI=OFF -DLOCKSTEP_UNITY_BUILD=ON)
  execute_process(COMMAND ninja -C "${work}/source/${from}" -t commands train OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
  expect_match("the commands for train" "${commands}" "-include [^ ]*cmake_pch.hxx [^\n]*train.cpp.*liblockstep_ddp.a")
  expect_no_library_of_kit("train with ${from}" "${commands}")
endforeach()
build_consumer("${work}/source/add_subdirectory" version)
execute_process(COMMAND "${work}/source/add_subdirectory/version" COMMAND_ERROR_IS_FATAL ANY)
