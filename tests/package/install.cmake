# SPDX-License-Identifier: BSD-3-Clause
# Installs the built tree into a fresh folder and checks that every part is present.
file(REMOVE_RECURSE "${work}/prefix")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${work}/prefix"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(file bin/lockstep include/lockstep/lockstep.h include/lockstep/base/error.h
             "${library_dir}/cmake/Lockstep/LockstepConfig.cmake" "${library_dir}/cmake/Lockstep/LockstepConfigVersion.cmake"
             "${doc_dir}/LICENSE" "${doc_dir}/README.md" "${doc_dir}/CHANGELOG.md")
  if(NOT EXISTS "${work}/prefix/${file}")
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
# lockstep-bench needs LibTorch, which no variable helps it to find.
foreach(program lockstep lockstep-bench)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH "${work}/prefix/bin/${program}" --help
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
