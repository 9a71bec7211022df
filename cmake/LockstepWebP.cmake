# SPDX-License-Identifier: BSD-3-Clause
# libwebp has a CMake package in few distributions, so its header and library are looked for.
include_guard()
include(FindPackageHandleStandardArgs)

# lockstep_import_webp(): makes the target WebP::webp.
macro(lockstep_import_webp)
  if(NOT TARGET WebP::webp)
    find_path(WebP_INCLUDE_DIR webp/decode.h)
    find_library(WebP_LIBRARY webp)
    mark_as_advanced(WebP_INCLUDE_DIR WebP_LIBRARY)
    set(WebP_FIND_REQUIRED TRUE)
    find_package_handle_standard_args(WebP NAME_MISMATCHED
      REASON_FAILURE_MESSAGE "install libwebp-dev, or build with -DLOCKSTEP_WITH_WEBP=OFF"
      REQUIRED_VARS WebP_LIBRARY WebP_INCLUDE_DIR)
    add_library(WebP::webp UNKNOWN IMPORTED)
    set_target_properties(WebP::webp PROPERTIES
      IMPORTED_LOCATION "${WebP_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${WebP_INCLUDE_DIR}")
  endif()
endmacro()
