/* What the models of the rings share: who holds whose K,V at which step, and which hops they make.

   Mirrors src/ring_attention/ring/topology.hpp, Ring:
     |   [[nodiscard]] constexpr int owner(int step) const { return (rank + size - step) % size; }
   and src/ring_attention/ring/parcel.hpp, KvParcel::exchange():
     |     if (!makes_hop(owner_, ring_.step_of(owner_) + 1)) hop.send = {};
     |     if (!makes_hop(incoming_owner, ring_.step_of(incoming_owner))) hop.receive = {};
     |     return hops_.empty() || hop <= hops_[static_cast<std::size_t>(owner)];

   Left out: the mask. With -DSKIP the K,V of every rank make any number of hops, so the checker tries the hops of every
   mask and every placement, those without tokens as well; without it all make N - 1.

   Mistake: RECEIVER_MISCOUNTS, the receiver expects one hop less than the sender makes. */
#ifndef N
#define N 3
#endif
#define NEXT(r) (((r) + 1) % N)
#define PREV(r) (((r) + N - 1) % N)
#define OWNER(r, t) (((r) + N - (t)) % N)
#define NONE 255

byte hops[N];
#define NEEDED(r, t) (t <= hops[OWNER(r, t)])         /* a query of rank r may see the keys of step t */
#define SENDS(r, t) (t + 1 <= hops[OWNER(r, t)])      /* after step t */
#ifdef RECEIVER_MISCOUNTS
#define RECEIVES(r, t) (t + 2 <= hops[OWNER(r, t + 1)])
#else
#define RECEIVES(r, t) (t + 1 <= hops[OWNER(r, t + 1)])
#endif

inline choose_hops() {
  i = 0;
  do
  :: i < N ->
#ifdef SKIP
     hops[i] = 0;
     do :: hops[i] < N - 1 -> hops[i]++ :: break od;
#else
     hops[i] = N - 1;
#endif
     i++
  :: else -> break
  od;
  i = 0
}
