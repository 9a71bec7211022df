# SPDX-License-Identifier: BSD-3-Clause
# Installs the built tree into a fresh folder and checks that every part is present.
file(REMOVE_RECURSE "${work}/prefix")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${work}/prefix"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(of_kit include/lockstep/lockstep.h include/lockstep/checkpoint.h include/lockstep/data.h include/lockstep/data/loader.h)
if(kit)
  set(expected ${of_kit})
else()
  foreach(file ${of_kit} include/lockstep/checkpoint/training_state.h)
    if(EXISTS "${work}/prefix/${file}")
      message(FATAL_ERROR "installed, but not built: ${file}")
    endif()
  endforeach()
endif()
foreach(file ${expected} bin/lockstep include/lockstep/distributed.h include/lockstep/checkpoint/state_dict.h include/lockstep/base/error.h
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
