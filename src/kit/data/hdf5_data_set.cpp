// SPDX-License-Identifier: BSD-3-Clause
#include "data/hdf5_data_set.h"

#include "base/throw_error.h"

#ifdef LOCKSTEP_WITH_HDF5

#include <algorithm>
#include <array>
#include <hdf5.h>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>

#include <lockstep/base/mutex.h>

#include "base/shared_library.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// Deflate makes at most so many bytes of one.
constexpr double kMostExpansion = 1032;

constexpr unsigned kReadOnly = 0;  // H5F_ACC_RDONLY

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

// Under hdf5_mutex().
const Hdf5Library& hdf5() {
  static const Hdf5Library library;
  return library;
}

Mutex& hdf5_mutex() {
  static Mutex mutex;
  return mutex;
}

// While it exists, libhdf5 prints no errors.
class QuietHdf5 {
 public:
  QuietHdf5() {
    hdf5().H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    hdf5().H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { hdf5().H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

// The cause of the last error.
std::string hdf5_problem() {
  std::string text;
  const auto keep_first = [](unsigned, const H5E_error2_t* error, void* kept) {
    auto& first = *static_cast<std::string*>(kept);
    if (first.empty() && error->desc != nullptr) first = error->desc;
    return herr_t{0};
  };
  hdf5().H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text);
  return "libhdf5: " + (text.empty() ? "unknown error" : text);
}

class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: implicit by design

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

double product_of(std::span<const hsize_t> dims) {
  double product = 1;
  for (const auto dim : dims) product *= static_cast<double>(dim);
  return product;
}

using Dims = std::array<hsize_t, H5S_MAX_RANK>;

}  // namespace

// Members are destroyed in reverse order: the lock is released last.
struct Hdf5DataSet::Open {
  Open(const fs::path& path, std::string set_name)
      : file_name(path.string()),
        name(std::move(set_name)),
        file_bytes(regular_file_size(path)),
        file(hdf5().H5Fopen(file_name.c_str(), kReadOnly, H5P_DEFAULT), hdf5().H5Fclose) {
    const ErrorFile about(path);
    if (file < 0) throw_error<DataError>("{}: {}", file_name, hdf5_problem());
    set.emplace(hdf5().H5Dopen2(file, name.c_str(), H5P_DEFAULT), hdf5().H5Dclose);
    check(*set);
    space.emplace(hdf5().H5Dget_space(*set), hdf5().H5Sclose);
    check(*space);
  }

  [[noreturn]] void fail(std::string_view problem) const {
    throw_error<DataError>(ErrorDetails{.file = file_name}, "{}: data set \"{}\": {}", file_name, name,
                           problem);
  }
  // Of any result of libhdf5.
  hid_t check(hid_t result) const {
    if (result < 0) fail(hdf5_problem());
    return result;
  }

  std::span<const hsize_t> dims(Dims& memory) const {
    return {memory.data(), static_cast<std::size_t>(
                               check(hdf5().H5Sget_simple_extent_dims(*space, memory.data(), nullptr)))};
  }

  // Refuses a data set, or a chunk of it, that is too large to be in this file.
  void check_bytes(std::size_t value_bytes) const {
    Dims memory{};
    auto values = product_of(dims(memory));
    const Hdf5Handle layout(hdf5().H5Dget_create_plist(*set), hdf5().H5Pclose);
    if (hdf5().H5Pget_layout(check(layout)) == H5D_CHUNKED) {
      const auto rank = check(hdf5().H5Pget_chunk(layout, H5S_MAX_RANK, memory.data()));
      values = std::max(values, product_of({memory.data(), static_cast<std::size_t>(rank)}));
    }
    const auto stored = std::min<std::uint64_t>(hdf5().H5Dget_storage_size(*set), file_bytes);
    const auto bytes = values * static_cast<double>(value_bytes);
    if (bytes <= kMostExpansion * static_cast<double>(stored)) return;
    fail(fmt::format("its header states {:.0f} bytes of values, which the {} bytes stored for it cannot hold",
                     bytes, stored));
  }

  // Returns the bytes of a value.
  std::size_t check_type(at::ScalarType dtype) const {
    const Hdf5Handle type(hdf5().H5Dget_type(*set), hdf5().H5Tclose);
    const auto bytes = hdf5().H5Tget_size(check(type));
    const auto kind = hdf5().H5Tget_class(type);
    if (dtype == at::kFloat && (kind != H5T_FLOAT || bytes != sizeof(float))) {
      fail("its values are not 32-bit floating-point numbers");
    }
    if (dtype == at::kLong && (kind != H5T_INTEGER || bytes > sizeof(std::int64_t))) {
      fail("its values are not integers");
    }
    return bytes;
  }

  static std::uint64_t regular_file_size(const fs::path& path) {
    const ErrorFile about(path);
    std::error_code error;
    if (!fs::exists(path, error)) throw_error<DataError>("{}: there is no such file", path.string());
    if (!fs::is_regular_file(path, error)) throw_error<DataError>("{}: is not a file", path.string());
    return fs::file_size(path);
  }

  const MutexLock lock{hdf5_mutex()};
  QuietHdf5 quiet{};
  std::string file_name;
  std::string name;
  std::uint64_t file_bytes;
  Hdf5Handle file;
  std::optional<Hdf5Handle> set{};
  std::optional<Hdf5Handle> space{};
};

Hdf5DataSet::Hdf5DataSet(const fs::path& file, std::string name)
    : open_(std::make_unique<Open>(file, std::move(name))) {
  Dims memory{};
  for (const auto dim : open_->dims(memory)) {
    if (!std::in_range<std::int64_t>(dim)) open_->fail(fmt::format("its header states a size of {}", dim));
    shape_.push_back(static_cast<std::int64_t>(dim));
  }
}

Hdf5DataSet::~Hdf5DataSet() = default;

at::Tensor Hdf5DataSet::read(at::ScalarType dtype, at::IntArrayRef sizes) const {
  open_->check_bytes(open_->check_type(dtype));
  auto values = at::empty(sizes, dtype);
  if (values.numel() == 0) return values;
  const Dims start{};
  Dims count{};
  std::ranges::copy(sizes, count.begin());
  const Hdf5Handle memory(hdf5().H5Screate_simple(static_cast<int>(sizes.size()), count.data(), nullptr),
                          hdf5().H5Sclose);
  open_->check(memory);
  const hid_t stored = *open_->space;
  open_->check(
      hdf5().H5Sselect_hyperslab(stored, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr));
  const hid_t type = dtype == at::kFloat ? *hdf5().native_float : *hdf5().native_int64;
  open_->check(hdf5().H5Dread(*open_->set, type, memory, stored, H5P_DEFAULT, values.mutable_data_ptr()));
  return values;
}

}  // namespace lockstep::data

#else

namespace lockstep::data {

struct Hdf5DataSet::Open {};

Hdf5DataSet::Hdf5DataSet(const std::filesystem::path& file, std::string /*name*/) {
  throw_error<DataError>(ErrorDetails{.file = file},
                         "{}: is an HDF5 file, but this Lockstep was built without LOCKSTEP_WITH_HDF5",
                         file.string());
}

Hdf5DataSet::~Hdf5DataSet() = default;

at::Tensor Hdf5DataSet::read(at::ScalarType /*dtype*/, at::IntArrayRef /*sizes*/) const { return {}; }

}  // namespace lockstep::data

#endif
