// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hdf5.h>

#include "base/shared_library.h"

namespace lockstep::data {

// The functions of libhdf5 that we call. Macros of hdf5.h that call others, such as H5F_ACC_RDONLY, cannot be
// used.
struct Hdf5Library {
  SharedLibrary library{"libhdf5",
                        {LOCKSTEP_HDF5_FILE, "libhdf5_serial.so.103", "libhdf5.so.103", "libhdf5.so.200",
                         "libhdf5_serial.so.310", "libhdf5.so.310"},
                        "libhdf5-103-1"};
  decltype(&::H5Dclose) H5Dclose = library["H5Dclose"];
  decltype(&::H5Dget_create_plist) H5Dget_create_plist = library["H5Dget_create_plist"];
  decltype(&::H5Dget_space) H5Dget_space = library["H5Dget_space"];
  decltype(&::H5Dget_storage_size) H5Dget_storage_size = library["H5Dget_storage_size"];
  decltype(&::H5Dget_type) H5Dget_type = library["H5Dget_type"];
  decltype(&::H5Dopen2) H5Dopen2 = library["H5Dopen2"];
  decltype(&::H5Dread) H5Dread = library["H5Dread"];
  decltype(&::H5Eget_auto2) H5Eget_auto2 = library["H5Eget_auto2"];
  decltype(&::H5Eset_auto2) H5Eset_auto2 = library["H5Eset_auto2"];
  decltype(&::H5Ewalk2) H5Ewalk2 = library["H5Ewalk2"];
  decltype(&::H5Fclose) H5Fclose = library["H5Fclose"];
  decltype(&::H5Fopen) H5Fopen = library["H5Fopen"];
  decltype(&::H5Pclose) H5Pclose = library["H5Pclose"];
  decltype(&::H5Pget_chunk) H5Pget_chunk = library["H5Pget_chunk"];
  decltype(&::H5Pget_layout) H5Pget_layout = library["H5Pget_layout"];
  decltype(&::H5Sclose) H5Sclose = library["H5Sclose"];
  decltype(&::H5Screate_simple) H5Screate_simple = library["H5Screate_simple"];
  decltype(&::H5Sget_simple_extent_dims) H5Sget_simple_extent_dims = library["H5Sget_simple_extent_dims"];
  decltype(&::H5Sselect_hyperslab) H5Sselect_hyperslab = library["H5Sselect_hyperslab"];
  decltype(&::H5Tclose) H5Tclose = library["H5Tclose"];
  decltype(&::H5Tget_class) H5Tget_class = library["H5Tget_class"];
  decltype(&::H5Tget_size) H5Tget_size = library["H5Tget_size"];
  // Valid once a file was opened.
  decltype(&::H5T_NATIVE_FLOAT_g) native_float = library["H5T_NATIVE_FLOAT_g"];
  decltype(&::H5T_NATIVE_INT64_g) native_int64 = library["H5T_NATIVE_INT64_g"];
};

}  // namespace lockstep::data
