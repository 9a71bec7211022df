# SPDX-License-Identifier: BSD-3-Clause
# CMake's module for HDF5 asks for a C compiler, so the header and the library of the serial HDF5 are looked for.
include_guard()

# lockstep_import_hdf5(): makes the target lockstep_hdf5, or sets hdf5_PROBLEM.
macro(lockstep_import_hdf5)
  set(hdf5_PROBLEM "")
  if(NOT TARGET lockstep_hdf5)
    find_path(LOCKSTEP_HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
    find_library(LOCKSTEP_HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial)
    mark_as_advanced(LOCKSTEP_HDF5_INCLUDE_DIR LOCKSTEP_HDF5_LIBRARY)
    if(LOCKSTEP_HDF5_INCLUDE_DIR AND LOCKSTEP_HDF5_LIBRARY)
      # Programs that do not use it do not need it at run time.
      add_library(lockstep_hdf5 INTERFACE IMPORTED)
      set_target_properties(lockstep_hdf5 PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${LOCKSTEP_HDF5_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--as-needed,${LOCKSTEP_HDF5_LIBRARY},--pop-state")
    else()
      set(hdf5_PROBLEM "libhdf5 was not found: install libhdf5-dev, or build Lockstep with -DLOCKSTEP_WITH_HDF5=OFF")
    endif()
  endif()
endmacro()
