# SPDX-License-Identifier: BSD-3-Clause
# For programs that use Lockstep, installed or as a subdirectory.
include_guard()

# lockstep_precompile_headers(<target>...): precompiles LibTorch's and Lockstep's headers once for these targets of the calling
# folder: lockstep/lockstep.h, or lockstep/distributed.h where Lockstep's kit is left out. The first target's options and
# definitions are used; the others need them, too.
function(lockstep_precompile_headers first)
  set(header "<lockstep/distributed.h>")
  if(TARGET Lockstep::kit)
    set(header "<lockstep/lockstep.h>")
  endif()
  target_precompile_headers(${first} PRIVATE "${header}")
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM ${first})
  endforeach()
endfunction()
