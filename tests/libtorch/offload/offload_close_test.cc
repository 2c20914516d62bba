// Leases, and the end of an offload.
#include "absl/time/clock.h"
#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using Access = Offload::Access;
using AtClose = Offload::AtClose;

TEST_F(OffloadTest, ALeaseHasTheBytes) {
  Make(Third());
  for (const auto& named : model_->named_parameters()) {
    SCOPED_TRACE(named.key());
    const auto lease = offload_->MakeLease(named.value(), Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(static_cast<const void*>(lease->data().data()),
              named.value().storage().data());
    EXPECT_EQ(lease->data().size(), named.value().storage().nbytes());
  }
  ExpectValues();
}

TEST_F(OffloadTest, WhatAWriteLeaseWritesStays) {
  Make(Third());
  const at::Tensor weight = model_->layers[7]->parameters()[0];
  {
    auto lease =
        offload_->MakeLease(weight.detach().view({-1}), Access::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    reinterpret_cast<float*>(lease->data().data())[17] = 42;
  }
  for (int pass = 0; pass < 3; ++pass) {  // others need its room
    const c10::NoGradGuard guard;
    model_->forward(tokens_);
  }
  at::Tensor expected = values_[3 + 2 * 7].clone();  // after the embedding's
  expected.view({-1})[17] = 42;
  EXPECT_TRUE(weight.detach().equal(expected));
}

TEST_F(OffloadTest, ALeaseOfAnotherTensorIsRefused) {
  Make(Third());
  const auto lease = offload_->MakeLease(at::ones({3}), Access::kRead);
  EXPECT_EQ(lease.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OffloadTest, WhatIsPrefetchedNeedsNoFetch) {
  Make(Bytes(kModelBytes / 2));
  ExpectValues();  // the last ones are in memory
  const HookStats before = offload_->stats().hook;
  const auto reads = [this] {
    return offload_->stats().runtime.prefetch_reads;
  };
  const int64_t read = reads();
  const at::Tensor weight = model_->layers[0]->parameters()[0];
  offload_->Prefetch({weight, at::ones({3})});
  const absl::Time late = absl::Now() + absl::Seconds(30);
  while (reads() == read) ASSERT_LT(absl::Now(), late);
  EXPECT_TRUE(weight.detach().equal(values_[3]));
  const HookStats after = offload_->stats().hook;
  EXPECT_EQ(after.fetches_ahead, before.fetches_ahead + 1);
  EXPECT_EQ(after.fetches, before.fetches);
}

TEST_F(OffloadTest, CloseRestoresAndRemovesTheFiles) {
  Make(Third());
  EXPECT_FALSE(folder_.empty());
  ExpectValues();
  offload_->BeginStep();
  const OffloadStats before = offload_->stats();
  const absl::Status closed = offload_->Close(AtClose::kRestore);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  ExpectInMemory();
  // Again: nothing; what is asked for is refused or what it was.
  EXPECT_TRUE(offload_->Close(AtClose::kRefuse).ok());
  ExpectInMemory();
  EXPECT_EQ(offload_->stats().steps, 1);
  EXPECT_EQ(offload_->stats().hook.fetches, before.hook.fetches);
  EXPECT_EQ(offload_->stats().budget_bytes, before.budget_bytes);
  EXPECT_TRUE(offload_->error().ok());
  offload_->BeginStep();
  offload_->Prefetch(model_->parameters());
  for (const absl::Status& status :
       {offload_->MakeLease(model_->out, Access::kRead).status(),
        offload_->Retry()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is closed"));
  }
  Make(Third());  // and a new one may have it
  ExpectValues();
}

TEST_F(OffloadTest, ItsEndRestores) {
  Make(Third());
  offload_.reset();
  EXPECT_TRUE(folder_.empty());
  ExpectInMemory();
}

TEST_F(OffloadTest, AfterARefusingCloseEachUseThrows) {
  Make(Third());
  const absl::Status closed = offload_->Close(AtClose::kRefuse);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  for (const auto& named : model_->named_parameters()) {
    EXPECT_THAT(ThrownBy([&] { named.value().detach().clone(); }),
                StartsWith("terrace: "))
        << named.key();
  }
  EXPECT_THAT(ThrownBy([&] { model_->forward(tokens_); }),
              StartsWith("terrace: "));
  offload_.reset();
  EXPECT_THAT(ThrownBy([&] { model_->forward(tokens_); }),
              StartsWith("terrace: "));
}

TEST_F(OffloadTest, CloseIsRefusedWhileAParameterIsLeased) {
  Make(Third());
  auto lease = offload_->MakeLease(model_->out, Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const absl::Status refused = offload_->Close(AtClose::kRestore);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("'out'"), HasSubstr("leased")));
  ExpectValues();
  lease->End();
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
  ExpectInMemory();
}

TEST_F(OffloadTest, ALeaseThatOutlivesItStaysUsable) {
  Make(Third());
  auto lease = offload_->MakeLease(model_->out, Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::vector<std::byte> bytes(lease->data().begin(),
                                     lease->data().end());
  offload_.reset();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), lease->data().begin()));
  ExpectValues();
  lease->End();
  ExpectValues();
}

TEST_F(OffloadTest, CloseIsRefusedWhileAQueueOfTheRuntimeIsHeld) {
  Make(Third());
  auto queue =
      offload_->runtime().OpenQueue(4096, 1, absl::Now() + absl::Minutes(1));
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExpectValues();
  const absl::Status refused = offload_->Close(AtClose::kRestore);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  ExpectInMemory();
  queue->reset();
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
  EXPECT_TRUE(folder_.empty());
  ExpectInMemory();
}

}  // namespace
}  // namespace terrace
