// SPDX-License-Identifier: BSD-3-Clause
#include "device/libtorch_versions.h"

namespace lockstep::libtorch {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
namespace {

// Nothing public allows it. An explicit instantiation may name a private member.
bool& refuses_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*member>
struct PrivateFlag {
  friend bool& refuses_access(c10::StorageImpl& storage) { return storage.*member; }
};
template struct PrivateFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void allow_access(c10::StorageImpl& storage) { refuses_access(storage) = false; }
#else
void allow_access(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

}  // namespace lockstep::libtorch
