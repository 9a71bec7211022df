# SPDX-License-Identifier: BSD-3-Clause
# Headers of libraries that programs load at their first use, so that they start without them.
include_guard()

# lockstep_find_header(<LIBRARY> <header> <package> <feature>): as LOCKSTEP_WITH_<LIBRARY> says, sets
# LOCKSTEP_HAS_<LIBRARY> and LOCKSTEP_<LIBRARY>_INCLUDE_DIR. <package>: Debian's; <feature>: what needs it.
macro(lockstep_find_header library header package feature)
  set(LOCKSTEP_HAS_${library} OFF)
  if(LOCKSTEP_WITH_${library})
    find_path(LOCKSTEP_${library}_INCLUDE_DIR "${header}")
    mark_as_advanced(LOCKSTEP_${library}_INCLUDE_DIR)
    if(LOCKSTEP_${library}_INCLUDE_DIR)
      set(LOCKSTEP_HAS_${library} ON)
    elseif(LOCKSTEP_WITH_${library} STREQUAL "AUTO")
      message(STATUS "${header} was not found, so ${feature} is left out: install ${package} for it")
    else()
      message(FATAL_ERROR "${header} was not found: install ${package}, or build Lockstep with -DLOCKSTEP_WITH_${library}=OFF")
    endif()
  endif()
endmacro()
