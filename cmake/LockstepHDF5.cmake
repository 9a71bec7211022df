# SPDX-License-Identifier: BSD-3-Clause
# CMake's module for HDF5 asks for a C compiler, so the header and the library of the serial HDF5 are looked for. The
# library is loaded when it is used: the build only takes its name.
include_guard()

# lockstep_find_hdf5(): sets LOCKSTEP_HDF5_INCLUDE_DIR, and LOCKSTEP_HDF5_FILE, the name that programs load.
macro(lockstep_find_hdf5)
  find_path(LOCKSTEP_HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
  find_library(LOCKSTEP_HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial)
  mark_as_advanced(LOCKSTEP_HDF5_INCLUDE_DIR LOCKSTEP_HDF5_LIBRARY)
  if(NOT LOCKSTEP_HDF5_INCLUDE_DIR OR NOT LOCKSTEP_HDF5_LIBRARY)
    message(FATAL_ERROR "libhdf5 was not found: install libhdf5-dev, or build Lockstep with -DLOCKSTEP_WITH_HDF5=OFF")
  endif()
  file(REAL_PATH "${LOCKSTEP_HDF5_LIBRARY}" LOCKSTEP_HDF5_FILE)
  cmake_path(GET LOCKSTEP_HDF5_FILE FILENAME LOCKSTEP_HDF5_FILE)
  string(REGEX REPLACE "(\\.so\\.[0-9]+).*" "\\1" LOCKSTEP_HDF5_FILE "${LOCKSTEP_HDF5_FILE}")
endmacro()
