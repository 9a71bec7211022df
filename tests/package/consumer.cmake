# SPDX-License-Identifier: BSD-3-Clause
# Builds the consumer and the programs of the documentation against the installed package, and runs the consumer.
file(REMOVE_RECURSE "${work}/consumer")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/consumer" DESTINATION "${work}")
foreach(page README docs/coming-from-python-ddp)
  get_filename_component(name "${page}" NAME)
  execute_process(
    COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/extract_program.py" "${source}/${page}.md" "${work}/consumer/${name}.cpp"
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${work}/consumer" -B "${work}/consumer/build" -G Ninja
          "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_FLAGS=${flags}"
          -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG # the optimizer has nothing to show here
          -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${work}/consumer/build/compile_commands.json" commands)
if(commands MATCHES "${source}/(include|src)")
  message(FATAL_ERROR "the consumer is built with headers of the source tree:\n${commands}")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/consumer/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${work}/consumer/build/train" COMMAND_ERROR_IS_FATAL ANY)
