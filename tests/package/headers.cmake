# SPDX-License-Identifier: BSD-3-Clause
# Whose fmt and nlohmann-json are compiled does not depend on the order of include folders.
file(REMOVE_RECURSE "${work}/headers")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/headers" -B "${work}/headers" -G Ninja "-Dsource=${source}"
  "-DCMAKE_CXX_COMPILER=${compiler}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/headers" COMMAND_ERROR_IS_FATAL ANY)
