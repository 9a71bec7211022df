// SPDX-License-Identifier: BSD-3-Clause
#include "comm/call_site.h"

namespace lockstep::comm {

const CallSite*& CallSite::innermost() {
  thread_local const CallSite* site = nullptr;
  return site;
}

}  // namespace lockstep::comm
