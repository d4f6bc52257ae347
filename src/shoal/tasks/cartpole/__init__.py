"""The cart-pole: a pole hinged to a cart on a rail, balanced or swung up by pushing the cart."""
