// Random moves of a transport between DRAM and places of tiers, against a plain
// map of what each place holds. The bytes of a place are all its value; what
// was not wholly written has none. A place has one move at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "tiers/byte_tier.h"
#include "tiers/transport.h"

namespace terrace {

class RandomMoves {
 public:
  static constexpr int kPlaces = 8;
  static constexpr int64_t kPlaceBytes = 3 << 19;

  // `await` turns the world until `done`; false: it never was.
  using Await = std::function<bool(absl::FunctionRef<bool()> done)>;
  // Places are of the `tiers` in turn. The transport outlives this.
  RandomMoves(Transport& transport, std::vector<TierId> tiers, uint32_t seed,
              Await await)
      : transport_(transport),
        tiers_(std::move(tiers)),
        random_(seed),
        await_(std::move(await)) {}
  // Memory is in use until all have ended.
  ~RandomMoves() {
    await_([this] {
      std::vector<Moved> moved;
      transport_.Poll(&moved);
      return transport_.pending() == 0;
    });
  }
  RandomMoves(const RandomMoves&) = delete;
  RandomMoves& operator=(const RandomMoves&) = delete;

  void Run(int moves) {
    for (int begun = 0; begun < moves || !under_way_.empty();) {
      const int place = Draw(kPlaces);
      if (begun < moves && !under_way_.contains(place)) {
        BeginAt(place);
        ++begun;
      } else if (Draw(4) == 0) {
        Disturb(place);
      } else {
        const size_t before = under_way_.size();
        ASSERT_TRUE(await_([&] {
          Poll();
          return under_way_.size() < before || before == 0;
        })) << "a move has not ended";
      }
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(transport_.pending(), 0);
    EXPECT_GT(whole_, moves / 2);
  }

  // Of the places that have a value.
  void ForEachWhole(
      absl::FunctionRef<void(int place, std::byte value, int64_t size_bytes)>
          look) const {
    for (const auto& [place, value] : values_) {
      look(place, ByteOf(value), sizes_.at(place));
    }
  }
  TierId TierOf(int place) const {
    return tiers_[static_cast<size_t>(place) % tiers_.size()];
  }
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }

  // Whether all bytes are `value`: each as the one before it, in one call, for
  // a loop over bytes takes its time under a sanitiser.
  static bool AllAre(std::byte value, const std::byte* bytes,
                     int64_t size_bytes) {
    return bytes[0] == value &&
           std::memcmp(bytes, bytes + 1, static_cast<size_t>(size_bytes) - 1) ==
               0;
  }

 private:
  struct UnderWay {
    bool up = false;
    int value = 0;
  };

  static std::byte ByteOf(int value) {
    return std::byte{static_cast<unsigned char>(value)};
  }
  int Draw(int below) { return static_cast<int>(random_() % below); }
  std::byte* DramAt(int place) { return dram_.data() + place * kPlaceBytes; }
  Edge EdgeOf(int place) const {
    return under_way_.at(place).up ? Edge{TierOf(place), kDramTier}
                                   : Edge{kDramTier, TierOf(place)};
  }

  void BeginAt(int place) {
    const bool up = values_.contains(place) && Draw(2) == 0;
    const int64_t size =
        up ? sizes_[place] : 1 + Draw(static_cast<int>(kPlaceBytes));
    under_way_[place] = {up, next_value_++};
    if (!up) {
      values_.erase(place);
      sizes_[place] = size;
    }
    // A move up must change it.
    const int value = up ? values_[place] + 1 : under_way_[place].value;
    std::memset(DramAt(place), value, static_cast<size_t>(size));
    Move move;
    move.tag = static_cast<uint64_t>(place);
    move.edge = EdgeOf(place);
    move.from = move.to = {place * kPlaceBytes, size};
    move.data = DramAt(place);
    move.io_class = static_cast<IoClass>(Draw(kIoClasses));
    transport_.Begin(move);
  }
  void Disturb(int place) {
    if (!under_way_.contains(place)) return;
    const auto tag = static_cast<uint64_t>(place);
    if (Draw(2) == 0) {
      transport_.Promote(EdgeOf(place), tag, IoClass::kDemand);
    } else {
      transport_.Cancel(EdgeOf(place), tag);
    }
  }
  void Poll() {
    std::vector<Moved> moved;
    transport_.Poll(&moved);
    for (const Moved& each : moved) {
      const int place = static_cast<int>(each.tag);
      ASSERT_TRUE(under_way_.contains(place)) << "ended twice";
      EXPECT_FALSE(each.late || each.released);
      const UnderWay was = under_way_.at(place);
      under_way_.erase(place);
      if (!each.status.ok()) {
        EXPECT_TRUE(absl::IsCancelled(each.status)) << each.status;
        continue;
      }
      ++whole_;
      (was.up ? read_bytes_ : written_bytes_) += sizes_[place];
      if (!was.up) values_[place] = was.value;
      EXPECT_TRUE(
          AllAre(ByteOf(values_.at(place)), DramAt(place), sizes_[place]))
          << "place " << place;
    }
  }

  Transport& transport_;
  const std::vector<TierId> tiers_;
  std::minstd_rand random_;
  const Await await_;
  std::vector<std::byte> dram_ = std::vector<std::byte>(kPlaces * kPlaceBytes);
  std::map<int, int> values_;  // by place
  std::map<int, int64_t> sizes_;
  std::map<int, UnderWay> under_way_;
  int next_value_ = 1;
  int whole_ = 0;
  int64_t read_bytes_ = 0;
  int64_t written_bytes_ = 0;
};

}  // namespace terrace
