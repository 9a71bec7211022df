# SPDX-License-Identifier: BSD-3-Clause
# libwebp has a CMake package in few distributions, so its header and library are looked for.
include_guard()

# lockstep_import_webp(): makes the target lockstep_webp, or sets webp_PROBLEM.
macro(lockstep_import_webp)
  set(webp_PROBLEM "")
  if(NOT TARGET lockstep_webp)
    find_path(LOCKSTEP_WEBP_INCLUDE_DIR webp/decode.h)
    find_library(LOCKSTEP_WEBP_LIBRARY webp)
    mark_as_advanced(LOCKSTEP_WEBP_INCLUDE_DIR LOCKSTEP_WEBP_LIBRARY)
    if(LOCKSTEP_WEBP_INCLUDE_DIR AND LOCKSTEP_WEBP_LIBRARY)
      add_library(lockstep_webp UNKNOWN IMPORTED)
      set_target_properties(lockstep_webp PROPERTIES
        IMPORTED_LOCATION "${LOCKSTEP_WEBP_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${LOCKSTEP_WEBP_INCLUDE_DIR}")
    else()
      set(webp_PROBLEM "libwebp was not found: install libwebp-dev, or build Lockstep with -DLOCKSTEP_WITH_WEBP=OFF")
    endif()
  endif()
endmacro()
