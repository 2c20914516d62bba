#include "libtorch/hook/compat.h"

#include <optional>
#include <utility>

namespace terrace {

void Arm(c10::StorageImpl& storage, std::string text) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::optional<std::string>(std::move(text)));
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
namespace {

// LibTorch 2.11 has no such call, but an explicit instantiation may name what
// is private: the member that says that there is a message, and the function
// that sums up what an access has to look at.
struct Members {
  friend bool c10::StorageImpl::*ThrowsOf(Members);
  friend void (c10::StorageImpl::*RefreshOf(Members))();
};
template <bool c10::StorageImpl::*kThrows, void (c10::StorageImpl::*kRefresh)()>
struct Opened {
  friend bool c10::StorageImpl::*ThrowsOf(Members) { return kThrows; }
  friend void (c10::StorageImpl::*RefreshOf(Members))() { return kRefresh; }
};
template struct Opened<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                       &c10::StorageImpl::refresh_has_data_ptr_check>;

}  // namespace

void Disarm(c10::StorageImpl& storage) {
  bool& throws = storage.*ThrowsOf(Members());
  if (!throws) return;
  throws = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  (storage.*RefreshOf(Members()))();
}
#else
void Disarm(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}
#endif

}  // namespace terrace
