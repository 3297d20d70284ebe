// The first arrivals of a race: a heap of the smallest (time, runner), the last of them on top; ties go to the smaller
// runner. The order is strict, so every correct heap gives the same result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace graphmill::sampling {

class Race {
   public:
    // For the first `places` arrivals.
    void start(int64_t places) {
        places_ = places;
        heap_.clear();
    }

    // Whether a runner of this `speed` whose way is `least` long or longer is too late for every place.
    bool is_late(double least, double speed) const {
        return places_ && int64_t(heap_.size()) == places_ && least > heap_.front().time * speed;
    }

    void arrive(double time, int64_t runner) {
        Arrival arrival{time, runner};
        if (int64_t(heap_.size()) < places_) {
            heap_.push_back(arrival);
            std::push_heap(heap_.begin(), heap_.end());
        } else if (places_ && arrival < heap_.front()) {
            std::pop_heap(heap_.begin(), heap_.end());
            heap_.back() = arrival;
            std::push_heap(heap_.begin(), heap_.end());
        }
    }

    // Writes the runners in order of arrival; returns how many.
    template <class I>
    int64_t finish(I* runners) {
        std::sort_heap(heap_.begin(), heap_.end());
        for (size_t i = 0; i < heap_.size(); ++i) runners[i] = I(heap_[i].runner);
        return int64_t(heap_.size());
    }

   private:
    struct Arrival {
        double time;
        int64_t runner;
        bool operator<(const Arrival& other) const {
            return time < other.time || (time == other.time && runner < other.runner);
        }
    };
    int64_t places_ = 0;
    std::vector<Arrival> heap_;
};

}  // namespace graphmill::sampling
