# SPDX-License-Identifier: BSD-3-Clause
# The header of elfutils' libdw. The library is loaded when `lockstep stacks` uses it.
include_guard()

# lockstep_find_libdw(): sets LOCKSTEP_HAS_LIBDW and LOCKSTEP_LIBDW_INCLUDE_DIR.
macro(lockstep_find_libdw)
  set(LOCKSTEP_HAS_LIBDW OFF)
  if(LOCKSTEP_WITH_LIBDW)
    find_path(LOCKSTEP_LIBDW_INCLUDE_DIR elfutils/libdwfl.h)
    mark_as_advanced(LOCKSTEP_LIBDW_INCLUDE_DIR)
    if(LOCKSTEP_LIBDW_INCLUDE_DIR)
      set(LOCKSTEP_HAS_LIBDW ON)
    elseif(LOCKSTEP_WITH_LIBDW STREQUAL "AUTO")
      message(STATUS "libdw was not found, so `lockstep stacks` is left out: install libdw-dev for it")
    else()
      message(FATAL_ERROR "libdw was not found: install libdw-dev, or build Lockstep with -DLOCKSTEP_WITH_LIBDW=OFF")
    endif()
  endif()
endmacro()
