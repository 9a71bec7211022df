# SPDX-License-Identifier: BSD-3-Clause
# Runs when the component "wheel" is installed: programs and libraries find each other, and torch beside the package,
# by paths that are relative to their own.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(GLOB programs "${prefix}/bin/*")
file(GLOB bundled "${prefix}/lib/bundled/*")
foreach(file IN LISTS programs)
  execute_process(COMMAND "${patchelf}" --set-rpath "\$ORIGIN/../lib/bundled:\$ORIGIN/../../torch/lib" "${file}"
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(file IN LISTS bundled)
  execute_process(COMMAND "${patchelf}" --set-rpath "\$ORIGIN" "${file}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(GLOB modules "${prefix}/_C.*.so")
foreach(file IN LISTS modules)
  execute_process(COMMAND "${patchelf}" --set-rpath "\$ORIGIN/lib/bundled:\$ORIGIN/../torch/lib" "${file}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
# The targets that Lockstep's link, which LockstepBundled.cmake defines.
foreach(component distributed kit)
  set(exported "${prefix}/lib/cmake/Lockstep/Lockstep_${component}.cmake")
  file(READ "${exported}" text)
  set(left ${renamed})
  while(left)
    list(POP_FRONT left target bundled_target)
    string(REPLACE "LINK_ONLY:${target}>" "LINK_ONLY:${bundled_target}>" text "${text}")
  endwhile()
  file(WRITE "${exported}" "${text}")
endforeach()
# mpi's module is made for the MPI of one machine.
file(REMOVE "${prefix}/lib/liblockstep_mpi.so")
file(REMOVE_RECURSE "${prefix}/share")
